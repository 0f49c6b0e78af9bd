"""How many of the machine's cores this process may use.

>>> usable() >= 1
True
"""

from __future__ import annotations

import os


def usable() -> int:
    """The cores that the scheduler gives this process: fewer than the machine's in many containers."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # no affinity on macOS and Windows
