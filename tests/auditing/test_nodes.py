"""An audit on nodes that own their data: sound runs pass, and faults of nodes and their server are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.owned_nodes import Owned, keys_of
from helpers.patching import patched

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting.ledger import read
from fedpriv.auditing import auditor, nodes
from fedpriv.auditing.auditor import audit_nodes
from fedpriv.auditing.finding import Finding
from fedpriv.auditing.statement import lines
from fedpriv.config.builders import make_source
from fedpriv.config.schema import Config
from fedpriv.data.client_files import write_client_file
from fedpriv.data.source import DataError
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.worker import Worker
from fedpriv.flower import client_app, server_app
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.grids.in_process import InProcessGrid
from fedpriv.flower.secure_parties import secured_over
from fedpriv.mechanism.placement import Central
from fedpriv.node import silo
from fedpriv.node.audit_file import left_out, write_audit_file
from fedpriv.node.audited_steps import NotedSteps, StepNotes
from fedpriv.node.factory import make_worker
from fedpriv.node.ledger import NodeLedger
from fedpriv.node.policy import RefusedError, as_taken
from fedpriv.rng import Key
from fedpriv.secure_aggregation.keys import Identity

NODES, ROWS, COINS = 3, 60, 40
RUN: dict[str, Any] = {
    "nodes-own-data": True, "audit": True, "unit": "example", "clients": NODES, "examples-per-client": ROWS,
    "model": "logistic", "sampler": "everyone", "sampling-rate": 1.0, "epsilon": 4.0, "delta": 1e-5,
    "rounds": 2, "optimizer": "dp-sgd",
}  # fmt: skip
LOCAL = {**RUN, "placement": "local"}
SHARES = {**RUN, "placement": "distributed"}
INSIDE: dict[str, Any] = {
    **RUN,
    "level": "client",
    "silo-steps": 3,
    "sampler": "poisson",
    "sampling-rate": 0.3,
    "optimizer": "dp-adam",
}
SOUND: dict[str, tuple[dict[str, Any], str]] = {
    "central": ({**RUN, "sampler": "poisson", "sampling-rate": 0.3}, "auto"),
    "local, the server": (LOCAL, "auto"),
    "distributed, the server": (SHARES, "server"),
    "collusion": ({**SHARES, "colluding-parties": 1}, "parties"),
    "fixed size, the last model": ({**RUN, "sampler": "fixed-size", "sampling-rate": 0.5}, "last-model"),
    "secure aggregation": ({**SHARES, "secure-aggregation": True}, "auto"),
    "planted canaries": ({**LOCAL, "planted-canaries": 30}, "auto"),
    "planted canaries, the server": ({**SHARES, "planted-canaries": 30}, "server"),
    "planted canaries, the client level": ({**INSIDE, "planted-canaries": 30}, "auto"),
    "the client level": (INSIDE, "auto"),
    "the client level, fixed size": (
        {**INSIDE, "sampler": "fixed-size", "optimizer": "dp-srm", "sampling-rate": 0.5}, "auto",
    ),
    "the client level, two releases a step": ({**INSIDE, "optimizer": "adadp", "silo-steps": 2}, "auto"),
}  # fmt: skip

SLOW = (
    "central", "fixed size, the last model", "planted canaries, the server",
    "planted canaries, the client level", "the client level, fixed size",
    "the client level, two releases a step",
)  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_processes() -> None:
    """Nodes of this process begin as new ones."""
    for cache in (
        client_app._secure_parties,
        client_app._node_ledger,
        client_app._side,
        client_app._silo_side,
    ):
        cache.cache_clear()


def owners_of(config: Config, folder: Path) -> list[dict[str, Any]]:
    """The nodes' configurations; the last file is shorter than its public size."""
    source, identities, found = make_source(config), [Identity.fresh() for _ in range(NODES)], []
    for place in range(NODES):
        path, rows = folder / f"{place}.npz", ROWS - 5 * (place == NODES - 1)
        write_client_file(path, source, np.arange(place * ROWS, place * ROWS + rows) + source.first)
        own = {"partition-id": place, "num-partitions": NODES, "data-file": str(path)}
        own |= {"audit-file": str(folder / f"{place}.audit")}
        if config.aggregates_securely:
            own |= keys_of(identities, place, folder)
        found.append(own)
    return found


def audited(
    settings: dict[str, Any],
    view: str,
    folder: Path,
    spoil: Callable[[Path], None] = print,
    observe: Callable[[int], None] = print,
) -> Finding:
    """An audit on three nodes of this process; ``spoil`` may change the folder once coins are planted."""
    config = Config.parse(settings)
    owners = owners_of(config, folder)
    number = 0 if config.planted_canaries else COINS
    coins = nodes.drawn(config, nodes.files_of(owners, "data-file"), number, view, Key.from_seed(3))
    nodes.plant(config, coins, nodes.files_of(owners, "audit-file"))
    spoil(folder)
    grid = GridEngine(Owned(config, owners), strict=True, silos=True, nodes=NODES, report=lambda line: None)
    engine = secured_over(config, grid) if config.aggregates_securely else grid
    return audit_nodes(config, coins, owners, engine, run=0, observe=observe, view=view)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in SLOW else ()) for kind in SOUND]
)
def test_a_sound_run_passes(kind: str, tmp_path: Path) -> None:
    """Nodes draw noise of their own, so that sound code fails with a probability below 1e-6."""
    settings, view = SOUND[kind]
    found = audited(settings, view, tmp_path)
    assert min(found.p_value, found.noise_p_value) > 1e-7, found.oddest
    assert found.wrong_ledgers == ()
    releases = 2 * settings.get("silo-steps", 1)
    planted = settings.get("planted-canaries", 0)
    facts = (found.own_data, found.planted, found.canaries, found.releases, found.stopped)
    assert facts == (True, planted > 0, planted or COINS, releases, "rounds")
    assert not list(tmp_path.glob("*.steps"))


def test_an_audit_is_charged_to_the_nodes_ledgers(tmp_path: Path) -> None:
    audited(LOCAL, "auto", tmp_path)
    assert [len(read(tmp_path / f"{k}.npz.ledger.jsonl").events) for k in range(NODES)] == [2] * NODES


def _all_there(folder: Path) -> None:
    (folder / "1.audit").write_text("")


def _scaled(factor: float) -> Any:
    return lambda right, *given: tuple(factor * std for std in right(*given))


def _half_of_the_noise(right: Any, side: Worker, request: Any) -> Any:
    if request.party_stds is None:
        return right(side, request)
    return right(side, replace(request, party_stds=tuple(std / 2 for std in request.party_stds)))


def _all_but_the_last(right: Any, ledger: NodeLedger, number: int, *given: Any) -> Any:
    """A node that answers its last release and does not charge it."""
    return right(ledger, number, *given) if number == 0 else None


def _half_as_much(right: Any, ledger: NodeLedger, number: int, events: Any, *given: Any) -> Any:
    """A node that charges more noise than it adds."""
    return right(
        ledger, number, [replace(e, noise_multiplier=2 * e.noise_multiplier) for e in events], *given
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(_all_but_the_last, "charged 1 of the 2 releases"), (_half_as_much, "charged other events than")],
)
def test_a_node_that_does_not_charge_what_it_answers_is_found(wrong: Any, said: str, tmp_path: Path) -> None:
    """Whatever the server's ledger says: an owner's limit is enforced by the node's own."""
    with patched(NodeLedger, "charge", wrong):
        found = audited(LOCAL, "auto", tmp_path)
    assert found.violated
    assert not found.irregular, found.oddest
    assert found.wrong_ledgers is not None
    assert len(found.wrong_ledgers) == NODES
    assert all(said in text for text in found.wrong_ledgers)
    *_, ledgers, verdict = lines(Config.parse(LOCAL), found)
    assert ledgers.startswith("the nodes' own ledgers: ")
    assert said in ledgers
    assert verdict == "VIOLATED: nodes answered what their own ledgers do not say"


def test_a_node_without_a_ledger_is_found(tmp_path: Path) -> None:
    def forgotten(right: Any, plan: Any, owners: Any, run: int) -> Any:
        for path in tmp_path.glob("*.ledger.jsonl*"):
            path.unlink()
        return right(plan, owners, run)

    with patched(auditor, "wrong_ledgers", forgotten):
        found = audited(LOCAL, "auto", tmp_path)
    assert found.wrong_ledgers is not None
    assert len(found.wrong_ledgers) == NODES


@pytest.mark.parametrize("settings", [LOCAL, INSIDE], ids=["local", "the client level"])
def test_an_interrupted_audit_does_not_judge_ledgers(settings: dict[str, Any], tmp_path: Path) -> None:
    """What was asked for may be charged or not."""

    def stop(rounds: int) -> None:
        raise KeyboardInterrupt

    found = audited(settings, "auto", tmp_path, observe=stop)
    assert (found.stopped, found.violated, found.wrong_ledgers) == ("interrupted", False, None)


def test_a_node_leaves_out_what_its_owners_file_names(tmp_path: Path) -> None:
    config = Config.parse(RUN)
    own = owners_of(config, tmp_path)[1]
    write_audit_file(Path(own["audit-file"]), np.array([0, 7]))
    units = np.arange(
        ROWS, 2 * ROWS
    )  # of node 1; a batch's owners are places among the units that are asked for
    owners = make_worker(config.table(), own).view.batch(units).owner.tolist()
    assert owners == [place for place in range(ROWS) if place not in (0, 7)]


def test_a_node_that_leaves_nothing_out_is_found(tmp_path: Path) -> None:
    """Its sums are not those of its planted data, so that residuals are not the noise."""
    found = audited({**RUN, "epsilon": 100.0}, "auto", tmp_path, spoil=_all_there)
    assert found.violated


@pytest.mark.parametrize(
    ("settings", "owner", "name", "wrong"),
    [(RUN, Central, "server_stds", _scaled(0.7)), (LOCAL, Worker, "answer", _half_of_the_noise)],
)
def test_less_noise_is_found(
    settings: dict[str, Any], owner: Any, name: str, wrong: Any, tmp_path: Path
) -> None:
    with patched(owner, name, wrong):
        found = audited(settings, "auto", tmp_path)
    assert found.irregular
    assert "too small" in found.oddest


def _changes_twice(right: Any, engine: GridEngine, request: Any) -> Any:
    return tuple(replace(change, delta=2 * change.delta) for change in right(engine, request))


def _a_change_too_few(right: Any, engine: GridEngine, request: Any) -> Any:
    return right(engine, request)[1:]


def _trains_on_other_answers(right: Any, noted: NotedSteps, state: Any, answer: Any) -> Any:
    """The notes have the noise; what leaves the node has half of it, say."""
    right(noted, state, answer)
    return noted.inner.update(state, tuple(part / 2 for part in answer))


def _one_cohort(right: Any, cohorts: Any, release: int, factor: float = 1.0) -> Any:
    return right(replace(cohorts, key=Key.from_seed(5)), 0, factor)


def _one_noise(right: Any, *given: Any) -> Any:
    return right(*given[:5], Key.from_seed(5), *given[6:])


def _a_step_too_few(right: Any, notes: StepNotes, number: int, steps: Any) -> None:
    right(notes, number, steps[:-1])


NOT_FOLLOWED = "a silo's change that does not follow from its charged releases"
INSIDE_FAULTS: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "less noise": (Central, "server_stds", _scaled(0.7), "noise that is too small"),
    "one cohort": (CohortSampler, "draw", _one_cohort, "cohort that was used before"),
    "a change that counts twice": (GridEngine, "train", _changes_twice, NOT_FOLLOWED),
    "notes of other answers": (NotedSteps, "update", _trains_on_other_answers, NOT_FOLLOWED),
    "a silo without a change": (GridEngine, "train", _a_change_too_few, "without one change of each silo"),
    "one noise for all nodes": (silo, "advance", _one_noise, "noise that silos share"),
    "a step without notes": (StepNotes, "write", _a_step_too_few, "another number of steps"),
}


SLOW_FAULTS = ("one cohort", "a silo without a change", "a step without notes")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=pytest.mark.slow if fault in SLOW_FAULTS else ()) for fault in INSIDE_FAULTS],
)
def test_a_fault_inside_a_node_is_found(fault: str, tmp_path: Path) -> None:
    owner, name, wrong, said = INSIDE_FAULTS[fault]
    with patched(owner, name, wrong):
        found = audited({**INSIDE, "rounds": 1}, "auto", tmp_path)
    assert found.irregular
    assert said in found.oddest


def test_an_audit_of_nodes_at_the_client_level_is_charged_like_a_run(tmp_path: Path) -> None:
    audited({**INSIDE, "rounds": 1}, "auto", tmp_path)
    assert [len(read(tmp_path / f"{k}.npz.ledger.jsonl").events) for k in range(NODES)] == [3] * NODES
    assert not list(tmp_path.glob("*.steps"))  # what nodes noted is removed once it is read


def test_notes_of_another_audit_are_not_read(tmp_path: Path) -> None:
    """A node that notes nothing ends the audit, whatever a killed audit has left."""

    left = [StepNotes.beside(tmp_path / f"{k}.audit") for k in range(NODES)]
    for notes in left:
        notes.write(0, [])
    with (
        patched(StepNotes, "write", lambda right, *given: None),
        pytest.raises(DataError, match=r"0\.audit\.steps.* is missing: a node notes its steps there"),
    ):
        audited({**INSIDE, "rounds": 1}, "auto", tmp_path)
    assert not any(notes.folder.exists() for notes in left)


def test_a_node_answers_audits_with_an_audit_file_alone() -> None:
    own = {"partition-id": 0, "data-file": "a.npz"}
    plain, audit = {"nodes-own-data": True}, {"nodes-own-data": True, "audit": True}
    assert as_taken(audit, {**own, "audit-file": "a.txt"})["audit"] is True
    with pytest.raises(RefusedError, match="allows audits by an audit-file"):
        as_taken(audit, own)
    with pytest.raises(RefusedError, match="so it answers audits alone"):
        as_taken(plain, {**own, "audit-file": "a.txt"})


def test_an_ordinary_run_is_no_audit() -> None:
    """Else its model, trained without examples, would look like any other."""
    config = Config.parse(RUN)
    with pytest.raises(ArgumentError, match="audit is True; it must be false"):
        server_app._run(InProcessGrid(NODES, config.table()), config)


@pytest.mark.parametrize("text", ["5", "-1", "1 2", "x", "1.0", "\n"])
def test_an_audit_file_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        left_out(text, 5)


@pytest.mark.parametrize(
    ("changes", "view", "said"),
    [
        ({"nodes-own-data": False, "audit": False}, "auto", "nodes-own-data is False; it must be true"),
        ({"level": "client"}, "server", "view is 'server'; it must be models with level client"),
        ({"unit": "client", "examples-per-client": 1}, "auto", "unit is 'client'; it must be example"),
        ({"seed": 1}, "auto", "seed is 1; it must be left out"),
        ({"placement": "distributed", "secure-aggregation": True}, "server", "view is 'server'; it must be"),
        ({"placement": "distributed", "secure-aggregation": True}, "parties", "view is 'parties'; it must"),
    ],
)
def test_what_cannot_be_watched_is_refused(changes: dict[str, Any], view: str, said: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        nodes.nodes_plan(Config.parse({**RUN, **changes}), view)
    assert said in str(refused.value)
