"""What people can get wrong is one kind of error, whichever part says it."""

from __future__ import annotations

import pytest
import typer

from fedpriv._check import ArgumentError, FedprivError
from fedpriv.accounting import BudgetExceeded, LedgerError, UnsupportedEvent
from fedpriv.cli.app import refusing
from fedpriv.data import DataError
from fedpriv.data.files import MissingDataError
from fedpriv.flower.grids.base import GridError
from fedpriv.flower.messages import MessageError
from fedpriv.flower.nodes import EngineError
from fedpriv.node_policy import RefusedError
from fedpriv.user_code import UserCodeError

VALUES = (ArgumentError, UnsupportedEvent, LedgerError, DataError, MessageError, RefusedError)
OTHERS = (BudgetExceeded, EngineError, GridError, MissingDataError, UserCodeError)


@pytest.mark.parametrize("kind", [*VALUES, *OTHERS])
def test_every_error_of_ours_is_one_line_of_a_command(
    kind: type[FedprivError], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, refusing():
        raise kind("what, and what to do")
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "fedpriv: what, and what to do\n"


def test_they_are_what_python_calls_them_too() -> None:
    assert all(issubclass(kind, ValueError) for kind in VALUES)
    assert issubclass(BudgetExceeded, RuntimeError)
    assert issubclass(EngineError, RuntimeError)
    assert issubclass(GridError, RuntimeError)
    assert issubclass(MissingDataError, FileNotFoundError)


def test_our_own_mistakes_keep_their_traceback() -> None:
    with pytest.raises(ValueError, match="ours"), refusing():
        raise ValueError("ours")
