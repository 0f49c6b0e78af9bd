"""What `fedpriv deploy resume` refuses before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpriv import simulate
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Ledger, LedgerError
from fedpriv.config.schema import Config
from fedpriv.deployment import runs
from fedpriv.deployment.folders import Party, read_server
from fedpriv.deployment.provision import Request, provision

RUN = {"engine": "in-process", "clients": 50, "rounds": 1, "sampling-rate": 0.5, "model": "logistic"}


@pytest.fixture
def server(tmp_path: Path) -> Party:
    """A deployment's server that started runs 7 (which has ended) and 8 (which wrote nothing)."""
    provision(tmp_path / "d", Request(2))
    server = read_server(tmp_path / "d")
    simulate(Config.parse(RUN), folder=tmp_path / "seven")
    text = "".join(json.dumps({"run": n, "out": str(tmp_path / name)}) + "\n" for n, name in NAMES.items())
    (server.folder / "runs.jsonl").write_text(text)
    return server


NAMES = {7: "seven", 8: "eight"}


def test_a_run_that_cannot_go_on_is_refused_before_anything_starts(server: Party, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="RUN is 9; it must be the number of a run of this deployment"):
        runs.continuation(server, 9)
    with pytest.raises(ArgumentError, match="nothing was charged: start it again"):
        runs.continuation(server, 8)
    with pytest.raises(ArgumentError, match="nodes-own-data is False; it must be true"):
        runs.continuation(server, 7)
    ledger, _ = Ledger.resume(tmp_path / "seven/ledger.jsonl")
    with ledger, pytest.raises(LedgerError, match="run 7 still goes on"):
        runs.continuation(server, 7)


def test_a_line_that_a_crash_cut_off_takes_no_later_run_along(
    server: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run begins a line of its own, and is found."""
    with (server.folder / "runs.jsonl").open("a") as file:
        file.write('{"run": 9, "ou')
    assert runs.folders(server).keys() == {7, 8}
    monkeypatch.setattr(runs, "start_app", lambda server, app, settings: 10)
    runs._start(server, {"out": "ten"}, {})
    assert runs.folders(server).keys() == {7, 8, 10}
