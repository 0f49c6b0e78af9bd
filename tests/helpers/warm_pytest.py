"""Runs pytest in forks of a process that has imported the large libraries, so that a run begins at once.

    python tests/helpers/warm_pytest.py

Reads lines from its standard input and writes a line for each: JSON lists, [seconds, arguments] and [exit
status, output]. The status is null if pytest took more than these seconds, and was ended, and 70 if pytest
itself broke: its own statuses end at 5. The project itself is imported by the forks alone, so that each sees
its files as they are.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback

# What tests import and does not import this project. One that is missing costs the forks time, no more.
_LIBRARIES = (
    "pytest",
    "hypothesis",
    "numpy",
    "scipy.stats",
    "torch",
    "torch.func",
    "flwr.app",
    "flwr.clientapp",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "ray",
    "pandas",
    "matplotlib.figure",
    "mpmath",
    "dp_accounting.pld",
    "dp_accounting.rdp",
    "cryptography.hazmat.primitives.ciphers",
    "safetensors.torch",
    "rich.console",
    "typer",
)
# Pytest warns of modules of its plugins that are imported before it begins, and warnings may be errors.
_QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
_BROKEN = 70
_PAUSE = 0.02  # seconds between looks at a fork


def main() -> None:
    """Serve until the input ends."""
    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        seconds, arguments = json.loads(line)
        with tempfile.TemporaryFile() as output:
            sys.stdout.flush()
            child = os.fork()
            if not child:
                _run(arguments, output.fileno())
            status = _waited(child, seconds)
            output.seek(0)
            print(json.dumps([status, output.read().decode(errors="replace")]), flush=True)


def _run(arguments: list[str], output: int) -> None:
    """Run pytest in this process, which ends with its status."""
    os.setsid()  # what it starts ends with it, if it is ended
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    import pytest

    try:
        status = int(pytest.main([*_QUIET, *arguments]))
    except BaseException:  # or the status would be that of failed tests
        traceback.print_exc()
        status = _BROKEN
    sys.exit(status)


def _waited(child: int, seconds: float) -> int | None:
    """The exit status of a fork; None if it had to be ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_PAUSE)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main()
