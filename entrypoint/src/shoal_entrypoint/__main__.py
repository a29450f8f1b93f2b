"""`python -m shoal_entrypoint` is `train`."""

from __future__ import annotations

import sys

from shoal_entrypoint.main import main

if __name__ == "__main__":
    sys.exit(main())
