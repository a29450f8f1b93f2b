"""Lets the C library give large blocks of memory back as soon as they are freed.

Micro-batches run in several threads, and glibc keeps what a thread has freed for that thread: gradients that one thread
made and another frees stay counted twice. By itself glibc also raises the size from which a block has a mapping of its
own, up to 32 MiB, so that tensors of that size are kept too. With a fixed limit each large tensor is returned when it
is freed (mallopt(3), M_MMAP_THRESHOLD). The price is that its pages are zeroed anew each time.
"""

from __future__ import annotations

import ctypes
import os

_M_MMAP_THRESHOLD = -3
# Filling so much costs far more than having its pages mapped anew.
LARGE_BYTES = 4 << 20


def return_large_blocks() -> bool:
    """Have blocks of LARGE_BYTES and more returned when freed; say whether this C library does.

    Without effect where the environment sets the limit itself, or where the C library has none.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "mmap_threshold" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES) == 1
