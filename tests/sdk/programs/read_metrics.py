"""Reads a folder of system metrics with the reader of the package smdebug; writes the events to a file, as JSON.

Not to stdout: there the package logs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from smdebug.profiler import LocalSystemMetricsReader
from smdebug.profiler.utils import TimeUnits


def main() -> None:
    reader = LocalSystemMetricsReader(sys.argv[1])
    reader.refresh_event_file_list()
    latest = reader.get_timestamp_of_latest_available_file()  # microseconds
    events = reader.get_events(0, latest + 60_000_000, unit=TimeUnits.MICROSECONDS)
    fields = [(one.type, one.name, one.dimension, one.value, one.node_id, one.timestamp) for one in events]
    Path(sys.argv[2]).write_text(json.dumps(fields))


if __name__ == "__main__":
    main()
