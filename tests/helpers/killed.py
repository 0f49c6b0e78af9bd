"""Work that is killed in the middle, to see how it goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def charges(folder: Path) -> dict[Path, int]:
    """When each run's ledger below the folder was last written to."""
    found = {}
    for path in folder.rglob("ledger.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime_ns
    return found


def begun_and_killed(work: Callable[[], object], folder: Path, wait: float) -> bool:
    """Do work in a process that is killed so many seconds after a charge below the folder.

    Returns:
        whether it was killed before it ended.
    """
    before = charges(folder)
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            work()
        os._exit(0)
    deadline = time.monotonic() + 60
    while charges(folder) == before and time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(0.01)
    time.sleep(wait)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
