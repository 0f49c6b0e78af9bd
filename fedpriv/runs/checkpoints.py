"""Taking a run up again where it was interrupted, failed or was killed.

Beside its ledger a run keeps ``state.safetensors``: the optimizer's state as of the last evaluation (of a
deployment's run, as of the last round), which follows from noisy answers alone. What was charged stays
charged: releases after that state are lost, and the run goes on under what is left of its budget, with
release numbers, and so noise, that nothing has used.

A deployment's nodes have charged a lost release, too, by its number, and answer it no second time. So it
counts as one that no node answered: with central or local noise it is made of the server's noise alone, and
the run goes on with the next; where a release needs replies (distributed noise, ``min-replies``), it is made
again under the next number. At the client level the lost rounds leave the model as it is, wherever the silos
are (:mod:`fedpriv.node.silo`). The states of simulated silos are in the file, too; a node that owns its data
keeps its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedpriv._internal import run_files, tensor_io, user_code, validation
from fedpriv._internal.files import read_json
from fedpriv.accounting import LedgerError, ledger
from fedpriv.accounting.head import Head
from fedpriv.accounting.ledger import Record
from fedpriv.config.plan import Plan
from fedpriv.config.resumable import obstacle
from fedpriv.config.schema import Config
from fedpriv.federated.stop_reason import StopReason
from fedpriv.node.silo_state import SiloState
from fedpriv.optimizers.base import State
from fedpriv.parameters import Layout
from fedpriv.report.comparison import spend_hint
from fedpriv.report.notices import remark

_SILO = "silo/"  # of tensors of silos


@dataclass(frozen=True)
class Checkpoint:
    """What a run resumes from.

    Attributes:
        state: the optimizer's, as of an evaluation, or as the run began.
        releases, link: how many events the ledger held then, and its mark
            (:attr:`fedpriv.accounting.ledger.Ledger.link`).
        model: a digest of the model's layout.
        metrics: the records up to then.
        resumed: the rounds after which the run was resumed, this time included.
        charged: how many events the ledger holds by now.
        changed: settings whose code (``module:name``) is in a file that is not as it was.
        untrained: the scores before round 1; empty where an earlier version began the run.
        begun: at the client level how many rounds have charges by now, be they complete or not.
        silos: the states of silos that this process hosts, by number.
    """

    state: State
    releases: int
    link: str
    model: str
    metrics: tuple[Mapping[str, Any], ...] = ()
    resumed: tuple[int, ...] = ()
    charged: int = 0
    changed: tuple[str, ...] = ()
    untrained: Mapping[str, float | None] = field(default_factory=dict)
    begun: int = 0
    silos: Mapping[int, SiloState] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """How many releases were paid for since then, whose answers are gone."""
        return self.charged - self.releases

    def unanswered(self, plan: Plan) -> int:
        """How many lost releases the run makes of noise alone, before it goes on; at the client level how
        many lost rounds leave the model as it is."""
        if plan.by_silo:
            return max(0, self.begun - self.state.step)
        silent = plan.config.nodes_own_data and plan.mechanism.placement.releases(0)
        return self.lost if silent else 0

    def require_model(self, config: Config, layout: Layout) -> None:
        """Raises ArgumentError unless this is the layout of the model that the run began with."""
        if self.model != digest(layout):
            raise validation.fail("model", config.model, "be the one that the run began with")

    def require_ledger(self, record: Record) -> None:
        """Raises LedgerError unless this is the ledger that the state was written beside, or it went on.

        A shorter one would have release numbers, and with them noise, used again.
        """
        if record.links[self.releases : self.releases + 1] != (self.link,):
            raise LedgerError("the ledger is not of the run that the state is of, or lacks releases of it")


def packed(
    plan: Plan,
    layout: Layout,
    state: State,
    head: Head,
    resumed: tuple[int, ...],
    untrained: Mapping[str, float | None] | None = None,
    silos: Mapping[int, SiloState] | None = None,
) -> bytes:
    """The content of the state's file.

    ``head`` is where the ledger ended when the run reached the state. ``silos`` are the states of silos that
    this process hosts.
    """
    tensors = state.tensors()
    for silo, own in (silos or {}).items():
        tensors |= {f"{_SILO}{silo}/{name}": tensor for name, tensor in (own.slots or {}).items()}
    about = {
        "step": state.step,
        "resumed": list(resumed),
        "releases": head.length,
        "link": head.link,
        "config": _digest(plan.config.toml()),
        "model": digest(layout),
        "tensors": tensor_io.digest(tensors),
        "code": _code(plan.config),
        "untrained": dict(untrained or {}),
        "silos": {str(silo): own.round for silo, own in (silos or {}).items()},
    }
    note = remark(plan.config)
    words = {"fedpriv": json.dumps(about)} | ({"remark": note} if note else {})
    return tensor_io.packed(tensors, words)


def require_settings(folder: Path, before: Config, now: Config) -> None:
    """Raises ArgumentError if the run in ``folder`` began with another value of a setting that both have."""
    table = now.table()
    for key, value in before.table().items():
        if key in table and table[key] != value:
            hint = f"the run in {folder} began with {value!r}"
            raise validation.fail(key, table[key], "be as it was to resume", hint)


def read(folder: Path, plan: Plan) -> Checkpoint:
    """What the run in ``folder``, of this plan, resumes from.

    Raises ArgumentError where nothing is left to do, the run's kind cannot be resumed, or its files are not
    there, damaged, or of another configuration; LedgerError where its ledger was changed or is another's.
    """
    config = plan.config
    if why := obstacle(config):
        hint = f"{why}; {spend_hint(folder, config)}"
        raise validation.fail("FOLDER", str(folder), "hold a run that can be resumed", hint)
    state, silos, about = _state(folder, config)
    if about["config"] != _digest(_settings(folder)):
        raise validation.ArgumentError(
            f"The configuration of the run in {folder} was changed: config.toml is not the file that the "
            "run wrote. Put the original file back, or begin a new run."
        )
    record, ended = _ledger(folder, config), stopped(folder)
    found = Checkpoint(
        state,
        about["releases"],
        about["link"],
        about["model"],
        _metrics(folder, state.step),
        (*about["resumed"], state.step),
        len(record.events),
        tuple(key for key, mark in _code(config).items() if about["code"].get(key) != mark),
        about["untrained"],
        begun_rounds(plan, record) if plan.by_silo else 0,
        silos,
    )
    found.require_ledger(record)
    for key, mark in objects_of(config).items():
        if about["code"].get(key, mark) != mark:
            hint = f"it is another {key} than the run's"
            raise validation.fail(key, getattr(config, key), "be the object that the run was given", hint)
    if not bool(torch.isfinite(state.params).all()):
        hint = "the model has diverged: begin a run with a smaller learning-rate"
        raise validation.fail("FOLDER", str(folder), "hold a finite model", hint)
    if ended == StopReason.BUDGET:
        raise validation.fail("FOLDER", str(folder), "have budget left", "the run ended at its budget")
    rounds = plan.rounds if plan.by_silo else plan.mechanism.rounds
    if ended and state.step >= rounds:
        raise validation.fail("FOLDER", str(folder), "have rounds left", f"all {rounds} were run")
    return found


def begun_rounds(plan: Plan, record: Record) -> int:
    """How many rounds of a run at the client level some silo has charges of. A crash can leave the last one
    charged to some silos, or for some steps; nobody was asked for it then, and it counts."""
    most = max((len(events) for events in record.by_silo().values()), default=0)
    return -(-most // plan.config.silo_steps)


def _state(folder: Path, config: Config) -> tuple[State, dict[int, SiloState], dict[str, Any]]:
    path = folder / run_files.STATE
    if not path.is_file():
        begun = _ledger(folder, config).events
        hint = "" if begun else "nothing was charged: begin the run again, with --overwrite"
        raise validation.fail("FOLDER", str(folder), f"hold a run's {run_files.STATE}", hint)
    try:
        with safe_open(path, "pt") as file:
            about = read_json(file.metadata()["fedpriv"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            wanted = ("code", "config", "link", "model", "releases", "resumed", "step", "tensors")
            known = {name: about[name] for name in wanted}
            about = known | {
                name: about.get(name, {}) for name in ("silos", "untrained")
            }  # 0.1.0 has neither
            if not _plausible(about):
                raise ValueError("the facts are not of the kinds that were written")
            if about["tensors"] != tensor_io.digest(tensors):
                raise ValueError("the tensors are not those that were written")
            silos = _silos(tensors, about["silos"])
            return State.from_tensors(tensors, int(about["step"])), silos, about
    except (
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
    ):  # RuntimeError: torch has no such type
        raise validation.fail("FOLDER", str(folder), f"hold an intact {run_files.STATE}") from None


def _silos(tensors: Mapping[str, Tensor], rounds: Mapping[str, int]) -> dict[int, SiloState]:
    """The states of silos of which ``rounds`` has the rounds that they may answer."""
    found = {}
    for silo, number in rounds.items():
        start = f"{_SILO}{silo}/"
        slots = {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
        found[int(silo)] = SiloState(number, slots or None)  # none: a first round that failed
    return found


def _plausible(about: Mapping[str, Any]) -> bool:
    """Whether the facts beside a state have the types with which they are written."""
    texts = (about[name] for name in ("config", "link", "model", "tensors"))
    tables = (about["code"], about["untrained"], about["silos"])
    if not all(isinstance(table, dict) for table in tables):
        return False
    numbers = (about["releases"], about["step"], *about["resumed"], *about["silos"].values())
    return all(isinstance(text, str) for text in texts) and all(
        isinstance(number, int) and number >= 0 for number in numbers
    )


def _settings(folder: Path) -> str:
    """The settings as config.toml has them, without its comments.

    The digest is of the file and not of the parsed configuration, so that a version of fedpriv that knows
    more settings can resume the run: settings that the file lacks have their defaults.
    """
    # A text that is no UTF-8 has another digest, too.
    lines = (folder / run_files.CONFIG).read_text("utf-8", "replace").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


def _ledger(folder: Path, config: Config) -> Record:
    try:
        return ledger.read(folder / run_files.LEDGER, command=config.ledger_anchor_command or None)
    except OSError:
        raise validation.fail("FOLDER", str(folder), "hold a run's ledger.jsonl") from None


def stopped(folder: Path) -> StopReason | None:
    """How the run ended; None where it was killed, and be it while it wrote its report."""
    if not all((folder / name).is_file() for name in run_files.REPORTS):
        return None
    try:
        return StopReason(read_json((folder / run_files.REPORT).read_bytes())["result"]["stopped"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _metrics(folder: Path, step: int) -> tuple[dict[str, Any], ...]:
    """The whole records of rounds up to ``step``; a line that was cut off was no record yet."""
    try:
        lines = (folder / run_files.METRICS).read_text().split("\n")[:-1]
        records = [read_json(line) for line in lines]
        return tuple(record for record in records if record["round"] <= step)
    except (OSError, ValueError, KeyError, TypeError):
        raise validation.fail("FOLDER", str(folder), "hold an intact metrics.jsonl") from None


def digest(layout: Layout) -> str:
    """A digest of a model's layout."""
    return _digest(json.dumps(layout.to_json()))


def _code(config: Config) -> dict[str, str]:
    """Digests of the files with a user's own code and starting weights, by the setting that names them."""
    marks = {key: user_code.source_digest(key, value) for key, value in config.user_code.items()}
    marks |= objects_of(config)
    if config.initial_weights:
        marks["initial-weights"] = hashlib.sha256(Path(config.initial_weights).read_bytes()).hexdigest()
    return marks


def objects_of(config: Config) -> dict[str, str]:
    """Digests of what is public of the data set and the model that were handed over as objects."""
    marks: dict[str, str] = {}
    for key in ("dataset", "model"):
        value = getattr(config, key)
        with contextlib.suppress(user_code.UserCodeError):  # it is not at hand, as a Flower app's model
            if user_code.in_memory(value):
                mark = user_code.content_digest(user_code.object_in_memory(key, value))
                marks |= {key: mark} if mark else {}
    return marks


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
