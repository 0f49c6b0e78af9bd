"""Cells side by side: the sweep's end of :mod:`fedpriv.simulation.sweeps.server`."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fedpriv._internal import hardware, validation

_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fedpriv.simulation.sweeps.server import serve; serve(int(sys.argv[2]))"
)
# How many threads libraries begin with; they read it when they are imported.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def threads_of(jobs: int) -> int:
    """The threads of a cell where so many cells run side by side."""
    return max(1, hardware.usable() // jobs)


class Pool:
    """The processes of a sweep's cells. They end where it is closed, or where this process is gone."""

    def __init__(self, jobs: int) -> None:
        threads = threads_of(jobs)
        environment = {**os.environ, **dict.fromkeys(_THREADS, str(threads))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, json.dumps(sys.path), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C reaches the sweep alone, which ends its cells
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output, self._rest = self._process.stdin, self._process.stdout, b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)

    def start(self, name: str, folder: Path, lock: Path, log: Path, settings: Mapping[str, Any]) -> None:
        """Begin a cell."""
        request = {"start": name, "folder": str(folder), "lock": str(lock), "log": str(log)}
        self._send({**request, "settings": dict(settings)})

    def end(self) -> None:
        """Ask all cells to end after their rounds."""
        self._send({"end": "after-round"})

    def messages(self, seconds: float) -> list[dict[str, Any]]:
        """What cells told, waiting at most so long. Raises FedprivError where their process is gone."""
        deadline = time.monotonic() + seconds
        while not (found := self._read(max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return []
        return found

    def _read(self, seconds: float) -> list[dict[str, Any]]:
        if not self._selector.select(seconds):
            return []
        read = os.read(self._output.fileno(), 1 << 20)
        if not read:
            raise _gone()
        *lines, self._rest = (self._rest + read).split(b"\n")
        return [json.loads(line) for line in lines]

    def _send(self, request: Mapping[str, Any]) -> None:
        try:
            self._input.write(json.dumps(request).encode() + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise _gone() from None

    def close(self) -> None:
        """End all cells at once."""
        self._selector.close()
        for stream in (self._input, self._output):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _gone() -> validation.FedprivError:
    return validation.FedprivError(
        "The process that starts the cells ended unexpectedly, perhaps for lack of memory. The same command "
        "continues the sweep; fewer jobs side by side need less memory."
    )
