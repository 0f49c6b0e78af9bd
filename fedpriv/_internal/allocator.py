"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes
import functools


@functools.cache
def tune_allocator() -> bool:
    """Keep freed memory for the next round, once a process. Returns whether this could be done.

    It changes the whole process, so a program calls it at its start and a library function never does.
    glibc maps and unmaps each large tensor anew, and touching fresh pages costs more than the arithmetic
    of per-example gradients. Other C libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trim_threshold, mmap_threshold = -1, -3
    return bool(mallopt(mmap_threshold, 2**25)) and bool(mallopt(trim_threshold, 2**30))
