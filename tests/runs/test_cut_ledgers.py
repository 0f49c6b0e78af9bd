"""A run is never resumed with fewer charges than it made releases, and always after an honest crash."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.small import small

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import LedgerError
from fedpriv.accounting import head as heads
from fedpriv.accounting.head import Head, read_head
from fedpriv.accounting.ledger import read
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.node.factory import make_worker
from fedpriv.report.markdown import markdown
from fedpriv.runs import checkpoints
from fedpriv.runs.result import Result, load_result
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import Status, execute

PLAIN = small(optimizer="dp-sgd", seed=5, rounds=6, evaluate_every=2)
LEDGER, HEAD = "ledger.jsonl", "ledger.jsonl.head"


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.report.plots.curves", lambda *arguments: b"")


class Engine:
    """The node in this process, with something happening at each gathering."""

    def __init__(self, config: Config, happens: Callable[[SumRequest], None]) -> None:
        self.side, self.happens = make_worker(config.table()), happens

    def gather(self, request: SumRequest) -> PartialSum:
        self.happens(request)
        return self.side.gather(request)

    def close(self) -> None:
        """Nothing to release."""


def begin(folder: Path, config: Config, end_after: int = 0) -> Result:
    """A run that is interrupted after so many rounds; 0: a whole one."""

    def show(status: Status) -> None:
        if status.round == end_after:
            raise KeyboardInterrupt

    return execute(make_plan(config), Engine(config, lambda request: None), RunFolder.create(folder), show)


def go_on(folder: Path, config: Config) -> Result:
    plan = make_plan(config)
    engine = Engine(config, lambda request: None)
    return execute(plan, engine, RunFolder(folder), resumed=checkpoints.read(folder, plan))


def test_a_ledger_cut_at_any_line_after_any_checkpoint_is_refused(tmp_path: Path) -> None:
    """The run is killed while it gathers each of its releases; then each number of lines is cut."""
    run, plan = tmp_path / "run", make_plan(PLAIN)

    def kill(request: SumRequest) -> None:
        shutil.copytree(run, tmp_path / f"killed {request.release + 1}")

    execute(plan, Engine(PLAIN, kill), RunFolder.create(run))
    for charged in range(1, 7):
        folder, checkpoint = tmp_path / f"killed {charged}", (charged - 1) // 2 * 2
        whole = (folder / LEDGER).read_bytes()
        lines = whole.splitlines(keepends=True)
        cuts = [b"".join(lines[: 1 + kept]) for kept in range(checkpoint, charged)]
        for cut in (*cuts, whole[:-20]):  # the last one looks as after a crash
            (folder / LEDGER).write_bytes(cut)
            with pytest.raises(LedgerError, match="its end was cut"):
                checkpoints.read(folder, plan)
        (folder / LEDGER).write_bytes(whole)
        assert checkpoints.read(folder, plan).charged == charged


def test_a_run_is_refused_without_its_head_and_its_report_names_it(tmp_path: Path) -> None:
    result = begin(tmp_path / "run", PLAIN, end_after=3)
    head = read_head(tmp_path / "run" / HEAD)
    assert head is not None
    assert result.report["privacy"]["ledger head"] == head.to_json() == {"length": 3, "chain": head.link}
    text = (tmp_path / "run" / "report.md").read_text()
    assert f"| head of the ledger | 3 lines after the header; hash of the last `{head.link}` |" in text
    del result.report["privacy"]["ledger head"]  # as of version 0.1.0
    assert "head of the ledger" not in markdown(result.report)
    (tmp_path / "run" / HEAD).unlink()
    with pytest.raises(LedgerError, match="is missing, so lines may have been cut from its end"):
        checkpoints.read(tmp_path / "run", make_plan(PLAIN))


def test_a_saved_result_has_its_head(tmp_path: Path) -> None:
    result = execute(make_plan(PLAIN), Engine(PLAIN, lambda request: None))
    result.save(tmp_path / "saved")
    record = read(tmp_path / "saved" / LEDGER)
    assert record.head == read_head(tmp_path / "saved" / HEAD)
    assert load_result(tmp_path / "saved").ledger == result.ledger


@pytest.mark.parametrize(("where", "anchored", "syncs"), [("run", False, 2), ("", True, 3), ("", False, 0)])
def test_a_charge_waits_for_the_disk_where_anybody_can_read_it_later(
    where: str, anchored: bool, syncs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line, the head and the anchor; a ledger in a temporary folder goes with the process."""
    anchor = {"ledger_anchor": str(tmp_path / "elsewhere" / "head")} if anchored else {}
    config, synced, seen = PLAIN.changed(**anchor), list[int](), list[int]()
    engine = Engine(config, lambda request: seen.append(len(synced)))
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(heads, "_sync", synced.append)
    execute(make_plan(config), engine, RunFolder.create(tmp_path / where) if where else None)
    assert seen[1] - seen[0] == syncs


def test_an_older_folder_that_is_put_back_is_refused_by_its_anchor(tmp_path: Path) -> None:
    anchor = tmp_path / "elsewhere" / "head"
    config = PLAIN.changed(ledger_anchor=str(anchor))
    begin(tmp_path / "run", config, end_after=2)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    whole = go_on(tmp_path / "run", config)
    assert read_head(anchor) == Head(**_names(whole.report["privacy"]["ledger head"]))
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "copy").rename(tmp_path / "run")
    with pytest.raises(LedgerError, match=rf"ends after event 2, and its anchor, {anchor}, says 6"):
        checkpoints.read(tmp_path / "run", make_plan(config))
    with pytest.raises(LedgerError, match=r"keeps the head of another ledger, with 6 events\. Name a new"):
        begin(tmp_path / "again", config)
    inside = PLAIN.changed(ledger_anchor=str(tmp_path / "again" / "head"))
    with pytest.raises(ArgumentError, match=r"ledger-anchor is .* be outside the output folder"):
        execute(make_plan(inside), Engine(inside, lambda request: None), RunFolder(tmp_path / "again"))


def _names(head: dict[str, object]) -> dict[str, object]:
    return {"length": head["length"], "link": head["chain"]}


KILLED = """
import sys
from pathlib import Path

from helpers.small import small

from fedpriv.config.plan import make_plan
from fedpriv.node.factory import make_worker
from fedpriv.runs import checkpoints
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import execute

folder, released = map(Path, sys.argv[1:])
config = small(optimizer="dp-sgd", rounds=80, evaluate_every=3)
plan = make_plan(config)


class Engine:
    def __init__(self):
        self.side = make_worker(config.table())

    def gather(self, request):
        with released.open("a") as file:
            file.write("one more\\n")
        return self.side.gather(request)

    def close(self):
        pass


resumed = checkpoints.read(folder, plan) if folder.exists() else None
output = RunFolder(folder) if resumed else RunFolder.create(folder)
execute(plan, Engine(), output, resumed=resumed)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_at_random_resumes_and_its_ledger_cannot_be_cut(tmp_path: Path) -> None:
    """SIGKILL comes at any moment of a round. Releases are counted outside the folder as they are made."""
    folder, released, draws = tmp_path / "run", tmp_path / "released", random.Random(7)
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    for kills in range(1, 4):
        before = released.read_text().count("\n") if released.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder), str(released)], env={**os.environ, "PYTHONPATH": path}
        )
        wanted = before + draws.randrange(1, 12)
        while not (released.exists() and released.read_text().count("\n") >= wanted):
            assert process.poll() is None, "the run did not resume"
            time.sleep(0.01)
        time.sleep(draws.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        made, whole = released.read_text().count("\n"), (folder / LEDGER).read_bytes()
        charged = len(read(folder / LEDGER).events)
        assert charged - kills <= made <= charged  # each kill costs one charge at most
        for kept in range(made):
            (folder / LEDGER).write_bytes(b"".join(whole.splitlines(keepends=True)[: 1 + kept]))
            with pytest.raises(LedgerError, match="its end was cut"):
                read(folder / LEDGER)
        (folder / LEDGER).write_bytes(whole)
