"""The cores and GPUs that this process may use, and its peak memory.

>>> usable() >= 1
True
>>> gpus("cpu")
0
"""

from __future__ import annotations

import os
import sys

import torch


def usable() -> int:
    """The number of cores that this process may use. In a container it can be below the machine's number."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows have no CPU affinity


def gpus(device: str) -> int:
    """The number of GPUs that torch sees; 0 if the setting ``device`` is ``cpu``."""
    return 0 if device == "cpu" or not torch.cuda.is_available() else torch.cuda.device_count()


def peak_memory() -> int:
    """The peak memory of this process in bytes; 0 if the system does not report it (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
