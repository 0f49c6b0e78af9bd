"""Runs of a deployment: started through Flower, followed to their end, and told truthfully.

``flwr run`` returns 0 whatever becomes of the run. Here a run has succeeded if Flower says that its ServerApp
completed and the run's own report says that it ended at its rounds or its budget. An operator on another
machine does not have the report; there the last line of the run's log says it.

``server`` is the server's party, or an operator's.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv._internal import run_files, validation
from fedpriv._internal.files import append_line, quoted, read_json, read_lines
from fedpriv._internal.settings import toml_value
from fedpriv.accounting import LedgerError, ledger
from fedpriv.config import consistency
from fedpriv.config.plan import make_plan
from fedpriv.config.reading import holds_run, read_run
from fedpriv.config.schema import Config
from fedpriv.deployment import control_api, enrol, flower_app, flower_cli
from fedpriv.deployment.flower_cli import FlowerError
from fedpriv.deployment.folders import Party
from fedpriv.federated.stop_reason import StopReason, reason_of
from fedpriv.flower.enrolment import read_enrolment
from fedpriv.flower.intervals import RUN_GOES_ON, RUN_STATE, SUPERLINK_GONE
from fedpriv.report import overview
from fedpriv.runs import checkpoints
from fedpriv.runs.run_dir import RunFolder, default_folder

_RECORD = "runs.jsonl"  # of the server's folder: which run writes into which folder
_SHOWN = 10  # runs of a table
_PATIENCE = 60.0  # seconds without an answer of the SuperLink until a wait ends
_FINISHED, _COMPLETED = "finished", "finished:completed"


@dataclass(frozen=True)
class Started:
    """A run that Flower has accepted: its id, and the folder that it writes on the server's machine."""

    run: int
    folder: Path | None


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        status: Flower's word for it, such as ``finished:completed``.
        details: Flower's reason, if it has one.
        stopped: the reason of the run's own report, or "" if it wrote none.
        success: whether the run reached its rounds or its budget.
        epsilon: what the report, or else the last evaluation, states as spent; None where nothing does.
        resumable: whether its folder has what `fedpriv deploy resume` goes on from.
    """

    status: str
    details: str
    stopped: str
    success: bool
    epsilon: float | None
    resumable: bool = False


def checked(server: Party, settings: Mapping[str, Any], audit: bool = False) -> Config:
    """The configuration of a run, or of an ``audit``, on this deployment.

    Raises ArgumentError for what it cannot run, and for what its ServerApp would refuse.
    """
    config = Config.parse(dict(settings))
    if not config.nodes_own_data:
        raise validation.fail("nodes-own-data", False, "be true", "each node of a deployment owns its data")
    hint = f"the deployment has {server.nodes} nodes"
    if not audit:
        consistency.check_no_audit(config)
    if config.clients != server.nodes:
        raise validation.fail("clients", config.clients, f"be {server.nodes}", hint)
    if config.min_nodes > server.nodes:
        raise validation.fail("min-nodes", config.min_nodes, f"be at most {server.nodes}", hint)
    if not config.user_code:  # which may be found where the ServerApp runs alone
        make_plan(config)
    if server.is_operator:
        return config  # who is enrolled is on the server's machine; the run waits for its nodes
    missing = sorted(set(range(server.nodes)) - set(enrol.enrolled(server)))
    if len(missing) > server.nodes - (config.min_nodes or server.nodes):
        enrols = f"`fedpriv deploy enrol {quoted(server.folder)}`"
        raise validation.ArgumentError(f"Partitions {missing} have no enrolled key; {enrols} enrols them.")
    return config


def start(server: Party, settings: Mapping[str, Any]) -> Started:
    """Starts a run with these settings. Raises ArgumentError before anything starts, else FlowerError."""
    config = checked(server, settings)
    if server.is_operator:  # the folder is on the server's machine, where its ServerApp checks it
        return _start(server, dict(settings) | {"out": config.out or default_folder()}, {})
    folder = Path(os.path.join(server.folder, config.out or default_folder()))
    RunFolder.check(folder, config.overwrite)
    return _start(server, dict(settings) | {"out": str(folder)}, {})


def _start(server: Party, settings: Mapping[str, Any], about: Mapping[str, Any]) -> Started:
    """Has Flower start a run into the settings' folder ``out``, and records it with what is ``about`` it."""
    app = server.folder / flower_app.FOLDER
    flower_app.write(app)
    run = start_app(server, app, settings)
    if server.is_operator:
        about = {**about, "settings": dict(settings)}  # to continue it: the run's folder is elsewhere
    append_line(server.folder / _RECORD, {"run": run, "out": settings["out"], **about})
    return Started(run, None if server.is_operator else Path(settings["out"]))


def start_app(server: Party, app: Path, settings: Mapping[str, Any]) -> int:
    """Has Flower start a run of an app with these settings; its number. Raises FlowerError."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "run.toml"
        file.write_text("".join(f"{key} = {toml_value(value)}\n" for key, value in settings.items()))
        return flower_cli.start_run(server, app, [str(file)])


def continuation(server: Party, run: int) -> dict[str, Any]:
    """The settings with which :func:`resume` continues a run that ended early.

    Raises ArgumentError or LedgerError if it cannot be continued or still goes on.
    """
    record = next((record for record in _records(server) if record["run"] == run), None)
    if record is None:
        known = ", ".join(str(record["run"]) for record in _records(server)) or "none"
        hint = f"`fedpriv deploy run` started: {known}"
        raise validation.fail("RUN", run, "be the number of a run of this deployment", hint)
    first = str(record.get("continues", run))  # by which nodes' ledgers know it
    if server.is_operator:  # its ServerApp refuses what cannot be continued
        return dict(record["settings"]) | {"continues": first}
    folder = Path(record["out"])
    if not holds_run(folder):
        hint = "nothing was charged: start it again with `fedpriv deploy run`"
        raise validation.fail("RUN", run, "have a folder with its config.toml", hint)
    try:
        ledger.require_unused(folder / run_files.LEDGER)
    except LedgerError:
        raise LedgerError(
            f"run {run} still goes on: its ServerApp has the ledger open. `fedpriv deploy status` shows it, "
            "and `fedpriv deploy stop` ends it. Where the SuperLink is gone, it ends by itself within "
            f"{2 * SUPERLINK_GONE:g} s"
        ) from None
    settings = read_run(folder) | {"out": str(folder)}
    config = checked(server, settings)
    checkpoints.read(folder, make_plan(config))
    return settings | {"continues": first}


def resume(server: Party, settings: Mapping[str, Any]) -> Started:
    """Continues a run in its folder, under a new number of Flower's. Raises FlowerError."""
    return _start(server, settings, {"continues": settings["continues"]})


def wait(server: Party, started: Started, show: Callable[[str], None]) -> Ended:
    """Waits for the run's end and shows its log meanwhile.

    Raises FlowerError if the SuperLink does not answer for a minute; the run may then still go on.
    """
    said: list[StopReason] = []

    def note(line: str) -> None:
        said[:] = [reason] if (reason := reason_of(line)) else said
        show(line)

    record = to_its_end(server, started.run, note)
    if started.folder is None:
        return _ended_elsewhere(record, said[0] if said else None)
    return ended(record, started.folder)


def to_its_end(server: Party, run: int, show: Callable[[str], None]) -> dict[str, Any]:
    """Flower's record of a run that has ended; its log is shown meanwhile. Raises FlowerError as ``wait``."""
    with _followed(server, run, show) as over:
        answered = time.monotonic()
        while True:
            try:
                (record,) = control_api.runs(server, run)
                answered = time.monotonic()
            except (FlowerError, ValueError) as error:
                if time.monotonic() - answered > _PATIENCE:
                    raise FlowerError(
                        f"the SuperLink has not answered for {_PATIENCE:g} s; run {run} may still go "
                        f"on: `fedpriv deploy status {quoted(server.folder)}` shows it ({error})"
                    ) from None
                record = {}
            if str(record.get("status", "")).startswith(_FINISHED):
                break
            if over.wait(RUN_GOES_ON):
                time.sleep(RUN_STATE)
    return record


def _ended_elsewhere(record: Mapping[str, Any], reason: StopReason | None) -> Ended:
    """How a run ended, by Flower's record and by what its log says about why it stopped."""
    status = str(record["status"])
    success = status == _COMPLETED and reason is not None and reason.complete
    return Ended(status, str(record.get("status-details", "")), reason or "", success, None)


@contextlib.contextmanager
def _followed(server: Party, run: int, show: Callable[[str], None]) -> Iterator[threading.Event]:
    """Within the block the lines of the run's log are shown; at its end, those that are still to come.

    The event is set when the log has ended, or says that the run has stopped.
    """
    process = flower_cli.follow(server, run)
    assert process.stdout is not None
    lines, over = process.stdout, threading.Event()

    def pass_on() -> None:
        for line in lines:
            show(line.rstrip("\n"))
            if reason_of(line):
                over.set()
        over.set()

    reader = threading.Thread(target=pass_on, daemon=True)
    reader.start()
    try:
        yield over
        reader.join(timeout=10.0)
    finally:
        process.terminate()
        process.wait()


def ended(record: Mapping[str, Any], folder: Path) -> Ended:
    """How a run ended, by Flower's record of it and by the run's own folder."""
    status = str(record["status"])
    reason = checkpoints.stopped(folder)
    success = status == _COMPLETED and reason is not None and reason.complete
    spent = latest(folder).get("epsilon") if reason is None else _epsilon(folder)
    resumable = (folder / run_files.STATE).is_file() and (reason.resumable if reason else True)
    details = str(record.get("status-details", ""))
    return Ended(status, details, str(reason or ""), success, spent, resumable)


def _epsilon(folder: Path) -> float | None:
    try:
        epsilon = overview.epsilon(read_json((folder / run_files.REPORT).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return epsilon if math.isfinite(epsilon) else None


def folders(server: Party) -> dict[int, Path]:
    """{run: its output folder} of the runs that `fedpriv deploy run` started."""
    return {int(record["run"]): Path(record["out"]) for record in _records(server)}


def _records(server: Party) -> list[dict[str, Any]]:
    return [record for record in read_lines(server.folder / _RECORD) if {"run", "out"} <= record.keys()]


def latest(folder: Path) -> dict[str, Any]:
    """The last record of a run's metrics: its round, its score and the epsilon spent; empty without one."""
    try:
        lines = (folder / run_files.METRICS).read_text().split("\n")[:-1]
        return dict(read_json(lines[-1])) if lines else {}
    except (OSError, ValueError, TypeError):
        return {}


def nodes_table(server: Party) -> list[dict[str, Any]]:
    """Each partition's key, Flower's node id and state; "not enrolled" for one without a key.

    An operator sees Flower's node ids and states alone.
    """
    states = control_api.nodes(server)
    if server.is_operator:  # which node is which partition is on the server's machine
        nodes = {"partition": None, "state": "", "node id": None, "key": None}
        return [{**nodes, "state": state, "node id": node} for node, state in states.items()]
    record = read_enrolment(server.enrolment) if server.enrolment.is_file() else {}
    rows = []
    for partition in range(server.nodes):
        entry = record.get(partition, {})
        state = states.get(entry["node-id"], "unknown to Flower") if entry else "not enrolled"
        rows.append(
            {
                "partition": partition,
                "state": state,
                "node id": entry.get("node-id"),
                "key": entry.get("key"),
            }
        )
    return rows


def runs_table(server: Party) -> list[dict[str, Any]]:
    """The newest runs: Flower's state, the round and the epsilon of the last evaluation, the folder."""
    known, rows = folders(server), []
    for record in control_api.runs(server)[:_SHOWN]:
        folder = known.get(int(record["run-id"]))
        last = latest(folder) if folder else {}
        rows.append(
            {
                "run": int(record["run-id"]),
                "state": record["status"],
                "round": last.get("round"),
                "epsilon": last.get("epsilon"),
                "folder": str(folder) if folder and folder.is_dir() else None,
            }
        )
    return rows
