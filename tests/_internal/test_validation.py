"""What people can get wrong is one kind of error, whichever part says it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import typer

from fedpriv._internal import user_code
from fedpriv._internal.user_code import UserCodeError
from fedpriv._internal.validation import ArgumentError, FedprivError
from fedpriv.accounting import BudgetExceeded, LedgerError, UnsupportedEvent
from fedpriv.cli.app import refusing
from fedpriv.data import DataError
from fedpriv.data.files import MissingDataError
from fedpriv.flower.grids.base import GridError
from fedpriv.flower.serialization import MessageError
from fedpriv.flower.topology import EngineError
from fedpriv.node.policy import RefusedError

VALUES = (ArgumentError, UnsupportedEvent, LedgerError, DataError, MessageError, RefusedError)
OTHERS = (BudgetExceeded, EngineError, GridError, MissingDataError, UserCodeError)


@pytest.fixture
def outside_user_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """This file counts as ours: what passes through a user's code shows that code."""
    monkeypatch.setattr(user_code, "_GENERATED", (*user_code._GENERATED, __file__))


@pytest.mark.usefixtures("outside_user_code")
@pytest.mark.parametrize("kind", [*VALUES, *OTHERS])
def test_every_fedpriv_error_is_one_line_of_a_command(
    kind: type[FedprivError], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, refusing():
        raise kind("what, and what to do")
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "fedpriv: what, and what to do\n"


def test_fedpriv_errors_are_also_pythons_errors() -> None:
    assert all(issubclass(kind, ValueError) for kind in VALUES)
    assert issubclass(BudgetExceeded, RuntimeError)
    assert issubclass(EngineError, RuntimeError)
    assert issubclass(GridError, RuntimeError)
    assert issubclass(MissingDataError, FileNotFoundError)


@pytest.mark.usefixtures("outside_user_code")
def test_internal_errors_keep_their_traceback() -> None:
    with pytest.raises(ValueError, match="ours"), refusing():
        raise ValueError("ours")


def numbered(number: int, file: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), file)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (numbered(errno.ENOSPC), "runs/x: No space left on device"),
        (numbered(errno.EROFS), "runs/x: Read-only file system"),
        (numbered(errno.EACCES, "runs/x/report.md"), "runs/x/report.md: Permission denied"),
        (numbered(errno.ECONNREFUSED), "[Errno 111] Connection refused"),
        (numbered(errno.EPIPE), "[Errno 32] Broken pipe"),
        (OSError("Ray could not start:\nport taken"), "Ray could not start: port taken"),
        (OSError(), "OSError"),
    ],
    ids=str,
)
def test_only_file_system_errors_name_a_folder(
    error: OSError, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, refusing(1, Path("runs/x")):
        raise error
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == f"fedpriv: {message}\n"
