"""Flower's commands with a patient start: a process that has not come up yet is not started a second time.

Flower 1.41 gives an app's process 30 seconds from its start to its first sign of life. After that it takes
the process for dead, and starts another one beside it. On a busy machine the imports alone take longer, and
each further process slows the others down: thirteen of one run were seen, and none began. Flower has no
setting for it. :func:`patient` gives a start 300 seconds. A process that has begun, and dies, is noticed as
before.

A SuperLink also ends when its SuperExec has died. That process starts the apps of runs, and Flower's
SuperLink goes on without it: a run would wait for ever. A unit starts both again. A SuperLink that is started
here is a quicker one (:mod:`fedpriv.deployment.superlink`), and may have as many connections as the proxies.

    python -m fedpriv.deployment.starts flower-superlink ARGUMENTS
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from types import FunctionType

from fedpriv._internal import descriptors, validation
from fedpriv.deployment.superlink import quicken

START_TIMEOUT = 300.0  # seconds
_LOOK = 0.5  # seconds between looks for a first child
_SECONDS = "HEARTBEAT_DEFAULT_INTERVAL"  # Flower's name
FLWR = "1.41"  # whose names are used here; tests/deployment/test_starts.py holds them


def patient() -> None:
    """Has Flower's servers in this process wait :data:`START_TIMEOUT` seconds for a process to come up.

    The two classes that hand out starts read the seconds by the name of a constant, with which Flower also
    notices dead processes. So the method alone gets another value of it.
    """
    from flwr.supercore.corestate import in_memory_corestate, sql_corestate

    for module, kind in (
        (in_memory_corestate, in_memory_corestate.InMemoryCoreState),
        (sql_corestate, sql_corestate.SqlCoreState),
    ):
        names = {**vars(module), _SECONDS: START_TIMEOUT}
        claim = kind.claim_task
        kind.claim_task = FunctionType(claim.__code__, names, claim.__name__, claim.__defaults__)


def end_with_child(end: Callable[[int], object] = os._exit) -> None:
    """Waits until a child of this process has died, and calls ``end`` with 1. An asked end is no death."""
    while True:
        try:
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # it is left for whoever started it
        except ChildProcessError:  # there is none yet
            child = None
        if child is not None and child.si_status not in (0, signal.SIGTERM, signal.SIGINT):
            print(f"fedpriv: the SuperExec has died ({child.si_status}); the SuperLink ends", flush=True)
            end(1)
            return
        time.sleep(_LOOK)


def run(command: str, arguments: Sequence[str]) -> None:
    """Runs a command of Flower in this process with patient starts.

    Raises ArgumentError if Flower has no such command.
    """
    found = entry_points(group="console_scripts", name=command)
    if not command.startswith("flower-") or not found:
        raise validation.fail("command", command, "be a command of Flower, such as flower-superlink")
    patient()
    if command == "flower-superlink":
        descriptors.raise_limit()
        quicken()
        threading.Thread(target=end_with_child, daemon=True).start()
    sys.argv = [command, *arguments]
    entry = next(iter(found))
    getattr(importlib.import_module(entry.module), entry.attr)()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
