"""torchrun's interpreter runs this script, which runs torchrun's: the same program, with the garbage collector out of
the way while torch is imported.

torch leaves some 300,000 objects that live as long as the process. To look at them again and again while they come, and
once more at the end, takes a quarter of the time from torchrun's start to its ranks' and from their end to its own.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys


def main() -> None:
    """Become the script that is the first argument."""
    del sys.argv[0]
    script = sys.argv[0]
    # As if Python had been given it, which follows links; before anything else is imported.
    sys.path[0] = os.path.dirname(os.path.realpath(script))  # noqa: PTH120 - pathlib is slow to import
    gc.disable()
    import torch.distributed.run  # noqa: F401

    gc.freeze()
    gc.enable()
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
