"""An audit on nodes that own their data, all of one owner.

The owner draws the coins, and each node leaves units out of its own data, by the audit file that the owner
writes for it (:mod:`fedpriv.node.audit_file`). With ``planted-canaries`` the units with coins are canaries in
place of the nodes' own examples (:mod:`fedpriv.node.planted`). Where neighbours replace a unit, an empty
place replaces it: another unit of the nodes in its place would be there twice, and lose more than the nodes'
ledgers charge.

Nodes draw their own noise, charge their ledgers and answer each release once, as in any run. The auditor
reads the data files, too, and so knows what each unit adds. Steps on neighbouring data are repeated in the
auditor's process, by the same code. At the client level nodes note their steps for the auditor
(:mod:`fedpriv.auditing.noting_silos`). In the end each node must have charged to its ledger what it answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from fedpriv._internal import validation
from fedpriv.accounting import LedgerError
from fedpriv.auditing.noting_silos import NotingSilos
from fedpriv.auditing.own_units import OwnUnits, usual_number
from fedpriv.auditing.subject import Subject, first_secret, require_a_coin, require_auditable, require_planted
from fedpriv.auditing.views import View, view_of
from fedpriv.config.builders import initial_params
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.data import Batch, Indices
from fedpriv.federated.engine import Engine
from fedpriv.federated.worker import Units, Worker
from fedpriv.node.audit_file import write_audit_file
from fedpriv.node.factory import make_worker
from fedpriv.node.ledger import NodeLedger, open_node_ledger
from fedpriv.node.planted import planted_ids
from fedpriv.node.silo import SiloEngine
from fedpriv.rng import Key

Owner = Mapping[str, Any]  # a node's configuration, as its owner wrote it


@dataclass(frozen=True)
class NodeCoins:
    """The coins of an audit.

    Attributes:
        guessed: the units whose coins are guessed, ascending (m,).
        absent: those of them that are left out, ascending.
    """

    guessed: Indices
    absent: Indices


@dataclass(frozen=True)
class NodesUnits:
    """The units of all nodes' files, with the run's numbers."""

    nodes: tuple[Units, ...]

    def batch(self, client_ids: Indices, device: torch.device | str = "cpu") -> Batch:
        """See :class:`fedpriv.federated.worker.Units`."""
        parts = [node.batch(client_ids, device) for node in self.nodes]  # each has its own units alone
        owner = torch.cat([part.owner for part in parts])
        order = torch.argsort(owner, stable=True)
        x, y = (torch.cat([getattr(part, name) for part in parts])[order] for name in "xy")
        return Batch(x, y, owner[order])


def nodes_plan(config: Config, view: str) -> Plan:
    """The plan of an audit on nodes. Raises ArgumentError for what it cannot watch."""
    require_auditable(config, on_nodes=True)
    seen = view_of(config, view)
    if config.aggregates_securely and seen not in (View.MODELS, View.LAST_MODEL):
        allowed = "be models or last-model for secure aggregation on nodes, whose server sees the sums"
        hint = "without --deployment the messages of the protocol are tested, and what colluders see"
        raise validation.fail("view", view, allowed, hint)
    return make_plan(config)


def drawn(config: Config, data_files: Sequence[Path], canaries: int, view: str, key: Key) -> NodeCoins:
    """Coins for up to ``canaries`` of the units that the files have (0: as many as are usual), or for all
    planted canaries.

    Raises ArgumentError for a run that cannot be audited so, or more canaries than units; DataError for files
    that are not there.
    """
    plan, seen = nodes_plan(config, view), view_of(config, view)
    if config.planted_canaries:
        require_planted(config, canaries)
    worker, size = _worker(plan, data_files), config.examples_per_client
    ranges = (np.arange(silo * size, (silo + 1) * size) for silo in range(config.clients))
    there = np.concatenate([ids[np.unique(worker.view.batch(ids).owner.numpy())] for ids in ranges])
    there = there[there >= first_secret(plan, seen)]
    if validation.integer("canaries", canaries) > len(there):
        raise validation.fail("canaries", canaries, f"be at most the nodes' {len(there)} examples")
    generator = key.generator("canaries")
    if config.planted_canaries:
        guessed = np.intersect1d(planted_ids(config), there)
        require_a_coin(guessed)
    else:
        count = min(len(there), canaries or usual_number(worker.task.dimension))
        guessed = np.sort(generator.choice(there, count, replace=False))
    return NodeCoins(guessed, guessed[generator.random(len(guessed)) < 0.5])


def plant(config: Config, coins: NodeCoins, audit_files: Sequence[Path]) -> None:
    """Writes each node's audit file by the coins."""
    size = config.examples_per_client
    for silo, path in enumerate(audit_files):
        write_audit_file(path, coins.absent[coins.absent // size == silo] - silo * size)


def on_nodes(
    plan: Plan,
    view: View,
    key: Key,
    coins: NodeCoins,
    owners: Sequence[Owner],
    engine: Engine | SiloEngine,
) -> Subject:
    """The run on nodes whose own data has the coins' units left out. At the client level ``engine`` has the
    nodes' silos train, which note their steps beside the audit files."""
    worker = replace(_worker(plan, files_of(owners, "data-file")), key=key)
    size, start = plan.config.examples_per_client, initial_params(worker.task, key).to(worker.device)
    units = OwnUnits(worker.view, worker, coins.guessed, coins.absent, replaced=False, span=size)
    side, there = replace(worker, view=units), ~np.isin(coins.guessed, coins.absent)
    notes = files_of(owners, "audit-file")
    noting = NotingSilos.of(cast(SiloEngine, engine), notes) if plan.by_silo else None
    asked = cast(Engine, engine)
    return Subject(
        plan, view, side, asked, units, coins.guessed, there, start, key, on_nodes=True, noting=noting
    )


def files_of(owners: Sequence[Owner], name: str) -> list[Path]:
    """The file of this name in each node's configuration."""
    return [Path(str(owner[name])) for owner in owners]


def wrong_ledgers(plan: Plan, owners: Sequence[Owner], run: int) -> tuple[str, ...]:
    """What is wrong with the nodes' own ledgers after the run of this number, a sentence each.

    A node that adds no noise itself, and whose owner counts no noise of the server, has nothing to charge.
    """
    ledgers = (open_node_ledger(plan, owner, run) for owner in owners)
    return tuple(filter(None, (_wrong(ledger) for ledger in ledgers if ledger is not None)))


def _wrong(ledger: NodeLedger) -> str:
    try:
        return ledger.differs()
    except (LedgerError, OSError) as error:
        return str(error)


def _worker(plan: Plan, data_files: Sequence[Path]) -> Worker:
    """A worker that answers for all nodes, by their files.

    Raises ArgumentError for a model of which nodes draw what the auditor cannot repeat.
    """
    table = plan.config.table()
    nodes = [make_worker(table, {"partition-id": k, "data-file": str(f)}) for k, f in enumerate(data_files)]
    if nodes[0].task.dropout.draws:
        hint = "nodes draw by themselves what is dropped"
        raise validation.fail(
            "model", plan.config.model, "have no dropout for an audit of a deployment", hint
        )
    return replace(nodes[0], own=None, view=NodesUnits(tuple(node.view for node in nodes)))
