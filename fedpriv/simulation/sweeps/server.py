"""The process from which cells are forked. It imports what a run needs once, so that a cell starts at once.

It reads requests from standard input and writes messages to standard output, each a JSON object in a line:

    {"start": NAME, "folder": ..., "lock": ..., "log": ..., "settings": {...}}     begin a cell
    {"end": "after-round"}                                                         interrupt all cells
    {"cell": NAME, "round": 3, "rounds": 20, "score": ..., "epsilon": ...}         a cell's progress
    {"cell": NAME, "failed": "why"}                                                a cell's error
    {"cell": NAME, "exit": CODE, "stopped": ...}                                   a cell's process has ended

Where standard input ends, the sweep is gone: the server kills its cells and ends. On Linux a cell also ends
where the server is killed.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_POLL = 0.05  # seconds between looks at processes that have ended
_PAUSE = 0.2  # seconds between messages of a cell's progress, evaluations aside
_LONGEST = 1500  # bytes of an error; a line of at most 4096 bytes is written whole
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, of Linux's prctl


def serve(threads: int) -> None:
    """Answer requests until standard input ends; each cell computes with so many threads."""
    output, running = os.dup(1), dict[int, str]()
    os.dup2(2, 1)  # what a user's code prints is no message
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep decides
    _import()
    rest = b""
    while True:
        if select.select([0], [], [], _POLL)[0]:
            read = os.read(0, 1 << 20)
            if not read:
                break
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                _answer(json.loads(line), running, output, threads)
        _reap(running, output)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _import() -> None:
    """Import what runs need, and start no threads: a forked process would not have them.

    The third-party modules are those that torch, the accountant, pictures and data sets import when they are
    first used, which takes seconds.
    """
    import dp_accounting.rdp  # noqa: F401
    import matplotlib.backends.backend_agg  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch._dynamo

    import fedpriv.simulation.sweeps.cell  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()


def _answer(request: Mapping[str, Any], running: dict[int, str], output: int, threads: int) -> None:
    if "end" in request:
        for pid in running:
            os.kill(pid, signal.SIGTERM)
        return
    server = os.getpid()
    pid = os.fork()
    if pid:
        running[pid] = request["start"]
        return
    code = 1
    try:
        _die_with(server)
        code = _run(request, output, threads)
    finally:
        os._exit(code)


def _die_with(server: int) -> None:
    """This process ends where the server does, and be it killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)


def _run(request: Mapping[str, Any], output: int, threads: int) -> int:
    """Run a cell; gives the exit code of its process."""
    import torch

    from fedpriv._internal import user_code, validation
    from fedpriv.config.schema import Config
    from fedpriv.runs.runner import Status
    from fedpriv.simulation.sweeps import cell

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    name, told = request["start"], 0.0
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    torch.set_num_threads(threads)

    def show(status: Status) -> None:
        nonlocal told
        now = time.monotonic()
        if status.evaluated == status.round or now - told > _PAUSE:
            told = now
            score = status.measure.labelled(status.score) if status.evaluated else ""
            epsilon = status.epsilon_text(status.spent)
            _tell(output, cell=name, round=status.round, rounds=status.rounds, score=score, epsilon=epsilon)

    try:
        stopped = cell.run(
            Path(request["folder"]), Config.parse(request["settings"]), Path(request["lock"]), show
        )
    except validation.FedprivError as error:
        if trace := user_code.trace(error):
            print(trace, file=sys.stderr, flush=True)
        _tell(output, cell=name, failed=str(error))
        return 1
    except KeyboardInterrupt:  # before its first round
        return 0
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        _tell(output, cell=name, failed=f"{type(error).__name__}: {error}")
        return 1
    _tell(output, cell=name, stopped=stopped)
    return 0


def _tell(output: int, **message: object) -> None:
    """Write one message, in one write: cells share the pipe."""
    if "failed" in message:
        text = " ".join(str(message["failed"]).split()).encode()
        message["failed"] = text[:_LONGEST].decode(errors="ignore")
    os.write(output, json.dumps(message, ensure_ascii=False).encode() + b"\n")


def _reap(running: dict[int, str], output: int) -> None:
    """Say which cells' processes have ended."""
    for pid in list(running):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            _tell(output, cell=running.pop(pid), exit=os.waitstatus_to_exitcode(status))
