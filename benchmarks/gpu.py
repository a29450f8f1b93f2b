#!/usr/bin/env python3
"""Times all-reduces of tensors on one GPU that several ranks share: smddp beside gloo, and NCCL where it takes part.

    python benchmarks/gpu.py [--sizes 64K,1M,16M,128M] [--rounds 15]

`aa`, `aaaa`: ranks of one host, where NCCL refuses. `ab`: two hosts over loopback, told apart by SMDDP_HOST_ID and, for
NCCL, NCCL_HOSTID; its kernels wait on the GPU while it serves the other process, so its times say nothing of hosts with
a GPU each. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import program
from harness.layout import bytes_of, size_name

WORKER = Path(__file__).resolve().parent / "peers" / "gpu_worker.py"
LAYOUTS = {"aa": "smddp,gloo", "aaaa": "smddp,gloo", "ab": "smddp,gloo,nccl"}
LIMIT_SECONDS = 300


class GpuError(Exception):
    """There is nothing to measure with."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time all-reduces of tensors on a GPU.")
    parser.add_argument("--sizes", default="64K,1M,16M,128M", help="of a tensor (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="of all libraries (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    try:
        options.sizes = [bytes_of(word) for word in options.sizes.split(",")]
    except ValueError as error:
        parser.error(f"--sizes: {error}")
    return options


def measure(hosts: str, libraries: str, sizes: list[int], rounds: int) -> dict[str, Any]:
    """What rank 0 of the ranks on `hosts`, one letter a rank, reports."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ranks = []
    for rank, host in enumerate(hosts):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "LOCAL_RANK": str(rank)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SMDDP_HOST_ID": host, "OMP_NUM_THREADS": "1"}
        if "nccl" in libraries:
            env |= {"NCCL_HOSTID": str(rank), "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
            env |= {"SMDDP_GPU_EXCHANGE": "always"}
        command = [sys.executable, str(WORKER), libraries, ",".join(map(str, sizes)), str(rounds)]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    try:
        outputs = [rank.communicate(timeout=LIMIT_SECONDS)[0] for rank in ranks]
    except subprocess.TimeoutExpired:
        raise GpuError(f"{hosts}: not done after {LIMIT_SECONDS} s") from None
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    failed = [rank for rank, one in enumerate(ranks) if one.returncode]
    if failed:
        raise GpuError(f"{hosts}: ranks {failed} failed; what they said is above")
    found: dict[str, Any] = json.loads(outputs[0].strip().splitlines()[-1])
    return found


def main() -> int:
    """Measure, print a table and the line."""
    options = parse(sys.argv[1:])
    if not Path("/dev/nvidia0").exists():
        raise GpuError("no NVIDIA GPU here (/dev/nvidia0)")
    lines: dict[str, Any] = {"benchmark": "gpu", "layouts": {}}
    for hosts, libraries in LAYOUTS.items():
        found = measure(hosts, libraries, options.sizes, options.rounds)
        medians = {
            library: {int(size): statistics.median(times) for size, times in of_size.items()}
            for library, of_size in found.pop("times").items()
        }
        print(f"{hosts}: {found['path']}, {found['gpu']}")
        for size in options.sizes:
            row = "".join(f"{library:>10} {medians[library][size] / 1000:9.3f} ms" for library in medians)
            print(f"{size_name(size):>10}{row}{medians['gloo'][size] / medians['smddp'][size]:9.2f} x gloo")
        lines["layouts"][hosts] = {
            **found,
            "microseconds": medians,
            "gloo_over_smddp": {
                size: round(medians["gloo"][size] / medians["smddp"][size], 3) for size in options.sizes
            },
        }
    print(json.dumps(lines))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main, (GpuError,)))
