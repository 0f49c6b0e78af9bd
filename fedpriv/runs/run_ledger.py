"""The ledger of a run: its header, its head and anchor, and the accountant that writes to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedpriv._internal import run_files, validation
from fedpriv._internal.version import __version__
from fedpriv.accounting import Event, Ledger, anchor, local_view
from fedpriv.accounting.ledger import Record
from fedpriv.config.plan import Plan
from fedpriv.report.notices import remark
from fedpriv.runs.budget import RunAccountant
from fedpriv.runs.checkpoints import Checkpoint
from fedpriv.runs.run_dir import RunFolder


@contextmanager
def open_accountant(
    plan: Plan, folder: RunFolder | None, resumed: Checkpoint | None
) -> Iterator[RunAccountant]:
    """The run's accountant, with its ledger open; in a temporary folder where there is no ``folder``."""
    with ExitStack() as stack:
        where = folder.path if folder else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = where / run_files.LEDGER
        if resumed is None:
            header = _header(plan, where)
            ledger = stack.enter_context(Ledger.create(path, header, durable=folder is not None))
            yield RunAccountant(plan, ledger, path)
            return
        ledger, record = Ledger.resume(path, plan.config.ledger_anchor_command or None)
        stack.enter_context(ledger)
        resumed.require_ledger(record)  # again, now that nobody else writes to it
        step = resumed.state.step + resumed.unanswered(plan)
        if plan.by_silo:
            step *= plan.config.silo_steps
        yield RunAccountant(plan, ledger, path, gate_events(plan, record), step)


def gate_events(plan: Plan, record: Record) -> tuple[Event, ...]:
    """The events of a run's ledger that its budget is held against: at the client level those of the silo
    that loses most."""
    if not plan.by_silo:
        return record.events
    return record.by_silo().get(str(plan.schedules[0].silos[0]), ())


def _header(plan: Plan, folder: Path) -> dict[str, Any]:
    """The header of a run's ledger. Raises ArgumentError if its anchor would be in the run's folder."""
    config = plan.config
    header: dict[str, Any] = {"fedpriv": __version__, "level": config.level, "unit": config.unit}
    header |= {"placement": config.placement}
    if plan.capped:
        header |= {local_view.LABEL: plan.max_participations}
    if config.ledger_anchor:
        file = Path(config.ledger_anchor).resolve()
        if file.is_relative_to(folder.resolve()):
            hint = "whoever can change the folder could change both"
            raise validation.fail("ledger-anchor", config.ledger_anchor, "be outside the output folder", hint)
        header |= {anchor.FILE: str(file)}
    if config.ledger_anchor_command:
        header |= {anchor.COMMAND: config.ledger_anchor_command}
    note = remark(config)
    return header | ({"remark": note} if note else {})
