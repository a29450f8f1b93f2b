"""torchrun's interpreter runs this script, which runs torchrun's: the same program, with the garbage collector out of
the way while torch is imported.

What torch imports lives as long as the process. To look at all of it again and again while it comes, and once more at
the end, took 0.3 s of the 1.3 s of a Python that imports torch 2.13 and ends.
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
