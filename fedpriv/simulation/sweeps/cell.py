"""One cell in its process: begun, resumed or begun anew, under the cell's lock.

What is left of a cell that was killed decides how it continues:

- nothing was charged: it begins;
- its state lost no release: it is resumed, and ends as if it had not been interrupted;
- releases were lost: it is resumed under what is left of its budget. A seeded cell begins anew instead, since
  it is reproducible and claims no privacy: so it ends as if it had not been interrupted, too;
- it cannot be resumed: a seeded cell begins anew. Without a seed the cell fails, since beginning anew would
  forget the releases that were charged.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedpriv._internal import run_files, validation
from fedpriv.accounting import LedgerError
from fedpriv.accounting.record import parse
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.stop_reason import StopReason
from fedpriv.runs import checkpoints
from fedpriv.runs.checkpoints import Checkpoint
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import Status, execute
from fedpriv.simulation.run import make_engine, resumed

_PATIENCE = 20.0  # seconds to wait for a cell's earlier process, which ends when its sweep is gone
_RESUMED = (StopReason.INTERRUPTED, StopReason.FAILED)


def ended(folder: Path) -> StopReason | None:
    """How the run in a folder ended; None where it has not ended, was interrupted or failed."""
    found = checkpoints.stopped(folder)
    return None if found in _RESUMED else found


def run(folder: Path, config: Config, lock: Path, show: Callable[[Status], None]) -> StopReason:
    """Run a cell to its end; says how it ended.

    SIGTERM ends it after its round. Raises ArgumentError, LedgerError or DataError where it cannot be run.
    """
    with held(lock, _PATIENCE):
        if (done := ended(folder)) is not None:
            return done
        with _ending_after_a_round() as check_end:

            def after_round(status: Status) -> None:
                show(status)
                if status.round < status.rounds:  # after its last round the cell has ended
                    check_end()

            plan, checkpoint = prepared(folder, config)
            engine = make_engine(plan.config)
            output = RunFolder(folder) if checkpoint else RunFolder.create(folder, overwrite=True)
            check_end()
            return execute(plan, engine, output, after_round, checkpoint).stopped


def prepared(folder: Path, config: Config) -> tuple[Plan, Checkpoint | None]:
    """The cell's plan, and what it is resumed from; None where it begins."""
    plan = make_plan(config)
    if not _charged(folder):
        return plan, None
    reproducible = config.seed >= 0
    try:
        own, checkpoint, _ = resumed(folder)
    except (validation.ArgumentError, LedgerError):
        if reproducible:
            return plan, None
        raise
    return (plan, None) if reproducible and checkpoint.lost else (own, checkpoint)


def _charged(folder: Path) -> bool:
    """Whether releases of an earlier run in the folder were charged; a ledger that is damaged counts."""
    path = folder / run_files.LEDGER
    try:
        return bool(parse(path.read_bytes(), str(path)).events)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError:
        return True


@contextmanager
def held(path: Path, patience: float = 0.0) -> Iterator[None]:
    """A lock on a file, which ends with the process. Raises ArgumentError where another process keeps it."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    hint = "wait until that process has ended"
                    raise validation.fail(
                        "lock", str(path), "be free; another process holds it", hint
                    ) from None
                time.sleep(0.05)
            except OSError:  # the file system has no locks
                break
        yield


@contextmanager
def _ending_after_a_round() -> Iterator[Callable[[], None]]:
    """Yields what to call between rounds: it raises KeyboardInterrupt once a SIGTERM came."""
    asked = False

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, request)
    try:
        yield check
    finally:
        signal.signal(signal.SIGTERM, previous)
