"""Taking a run up again where it was interrupted, failed or was killed.

Beside its ledger a run keeps ``state.safetensors``: the optimizer's state as of the last evaluation, which
follows from noisy answers alone. What was charged stays charged: releases after that state are lost, and the
run goes on under what is left of its budget, with release numbers, and so noise, that nothing has used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedpriv import _check
from fedpriv.accounting import ledger
from fedpriv.accounting.ledger import Record
from fedpriv.config import Config
from fedpriv.optimizers.base import State
from fedpriv.plan import Plan
from fedpriv.report import remark

FILE = "state.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """What a run is taken up from.

    Attributes:
        state: the optimizer's, as of an evaluation, or as the run began.
        metrics: the records up to then.
        resumed: the rounds after which the run was taken up, this time included.
        charged: how many releases the ledger holds.
    """

    state: State
    metrics: tuple[Mapping[str, Any], ...] = ()
    resumed: tuple[int, ...] = ()
    charged: int = 0

    @property
    def lost(self) -> int:
        """How many releases were paid for whose answers are gone."""
        return self.charged - self.state.step


def obstacle(config: Config) -> str | None:
    """Why a run of this configuration cannot be taken up again; None where it can."""
    if config.level == "client":
        return "its silos' own states were kept in memory only (level client)"
    if config.nodes_own_data:
        return "its nodes own their data, and answered another run id"
    if config.placement == "local" and 0 < config.max_participations < config.rounds:
        return "who has given data is kept in memory only (max-participations)"
    if config.seed < 0 and (config.optimizer == "rrpsgd" or config.srm_random_iterate):
        return "what was drawn before it began is kept in memory only"
    return None


def packed(plan: Plan, state: State, resumed: tuple[int, ...]) -> bytes:
    """The content of FILE."""
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in state.tensors().items()}
    about = {"step": state.step, "resumed": list(resumed), "config": _digest(plan.config)}
    note = remark(plan.config)
    return save(tensors, {"fedpriv": json.dumps(about)} | ({"remark": note} if note else {}))


def read(folder: Path, plan: Plan) -> Checkpoint:
    """What the run in ``folder``, of this plan, is taken up from.

    Raises ArgumentError where nothing is left to do, the run's kind cannot be taken up, or its files are not
    there, damaged, or of another configuration; LedgerError where its ledger was changed.
    """
    if why := obstacle(plan.config):
        raise _check.fail("FOLDER", str(folder), "hold a run that can be taken up", why)
    state, about = _state(folder)
    if about.get("config") != _digest(plan.config):
        hint = "config.toml was changed, or another version of fedpriv wrote it"
        raise _check.fail("FOLDER", str(folder), "hold a run as its configuration was", hint)
    if _stopped(folder) == "budget":
        raise _check.fail("FOLDER", str(folder), "have budget left", "the run ended at its budget")
    if state.step >= plan.setup.rounds:
        raise _check.fail("FOLDER", str(folder), "have rounds left", f"all {plan.setup.rounds} were run")
    metrics, charged = _metrics(folder, state.step), len(_ledger(folder).events)
    return Checkpoint(state, metrics, (*about["resumed"], state.step), charged)


def _state(folder: Path) -> tuple[State, dict[str, Any]]:
    path = folder / FILE
    if not path.is_file():
        raise _check.fail("FOLDER", str(folder), f"hold a run's {FILE}")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["fedpriv"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return State.from_tensors(tensors, int(about["step"])), about
    except (SafetensorError, KeyError, TypeError, ValueError):
        raise _check.fail("FOLDER", str(folder), f"hold an intact {FILE}") from None


def _ledger(folder: Path) -> Record:
    try:
        return ledger.read(folder / "ledger.jsonl")
    except OSError:
        raise _check.fail("FOLDER", str(folder), "hold a run's ledger.jsonl") from None


def _stopped(folder: Path) -> str | None:
    """How the run ended; None where it was killed."""
    try:
        return str(json.loads((folder / "report.json").read_text())["result"]["stopped"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _metrics(folder: Path, step: int) -> tuple[dict[str, Any], ...]:
    """The whole records of rounds up to ``step``; a line that was cut off was no record yet."""
    try:
        lines = (folder / "metrics.jsonl").read_text().split("\n")[:-1]
        records = [json.loads(line) for line in lines]
        return tuple(record for record in records if record["round"] <= step)
    except (OSError, ValueError, KeyError, TypeError):
        raise _check.fail("FOLDER", str(folder), "hold an intact metrics.jsonl") from None


def _digest(config: Config) -> str:
    return hashlib.sha256(config.toml().encode()).hexdigest()
