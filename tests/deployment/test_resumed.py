"""A deployment's run that was killed goes on, and neither side has charged less than it answered."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from helpers.absent_silos import missed, simulated
from helpers.deployed_runs import (
    await_charges,
    finished,
    kill_between_rounds,
    kill_server,
    kill_server_app_alone,
    ledgers,
    lost_rounds,
    started,
)
from helpers.deployments import Deployment, await_true
from helpers.left_folders import require_ended, require_unfinished
from helpers.toy_app import saved_params

from fedpriv.accounting import epsilon, ledger
from fedpriv.config.builders import initial_params
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.reading import read_run
from fedpriv.config.schema import Config
from fedpriv.deployment import control_api, enrol, runs
from fedpriv.federated.stop_reason import StopReason
from fedpriv.node.own_events import own_events
from fedpriv.node.silo import TrainRequest, averaged, make_silo_worker, round_events
from fedpriv.node.silo_state import SiloStateFile
from fedpriv.report.summary import enforced_guarantee
from fedpriv.runs import checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.processes]

NODES, ROUNDS = 3, 12


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("resumed") / "d", NODES, examples=300) as made:
        made.start_server()
        made.start_nodes(range(NODES))
        yield made


def begun(deployed: Deployment, name: str, folder: Path, **changes: object) -> subprocess.Popen[str]:
    """A run with an example's settings that goes on; it has a seed."""
    settings = {"out": folder, "rounds": ROUNDS, "evaluate-every": 1, "examples-per-client": 300, "seed": 5}
    settings |= {key.replace("_", "-"): value for key, value in changes.items()}
    options = [f"--set={key}={value}" for key, value in settings.items()]
    return started(
        deployed, "run", str(deployed.folder), str(deployed.server.folder / f"{name}.toml"), *options
    )


def resumed(deployed: Deployment, folder: Path) -> subprocess.Popen[str]:
    """The continuation of the run in a folder, by its newest number."""
    return started(deployed, "resume", str(deployed.folder), str(numbers(deployed, folder)[-1]))


def numbers(deployed: Deployment, folder: Path) -> list[int]:
    """Flower's numbers of a run and of its continuations."""
    return [run for run, path in runs.folders(deployed.server).items() if path == folder]


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        pytest.param("central", [kill_server], marks=pytest.mark.exhaustive),
        ("local", [kill_server_app_alone, kill_server]),
    ],
)
def test_a_killed_run_goes_on(
    deployed: Deployment, name: str, kills: Sequence[Callable[[Deployment, subprocess.Popen[str]], None]]
) -> None:
    """In round 3, and again in round 5. A lost release is charged, nothing answers it, and no other release
    has its noise: the model is that of a run here whose silos all miss it, and not the undisturbed one."""
    folder, lost = deployed.folder / f"out-{name}", dict[int, set[int]]()
    before = [len(ledger.read(path).events) for path in ledgers(deployed)]
    process = begun(deployed, name, folder)
    for count, kill in enumerate(kills, 1):
        await_charges(deployed, folder, 2 * count + 1)
        kill(deployed, process)
        plan = make_plan(Config.parse(read_run(folder)))
        reached = checkpoints.read(folder, plan)
        assert require_unfinished(folder) == pytest.approx(spent_by(plan, reached.charged))
        lost |= {release: set(range(NODES)) for release in range(reached.releases, reached.charged)}
        process = resumed(deployed, folder)
    output, first = finished(process), numbers(deployed, folder)[0]
    assert "exit code 0" in output, output + deployed.log("server")[-3000:] + deployed.log("node-0")[-3000:]
    assert lost_rounds(output) <= set(lost)

    record = ledger.read(folder / "ledger.jsonl")
    assert record.events == plan.events, "each release is charged once, also a lost one"
    require_ended(folder, StopReason.ROUNDS, resumed=len(kills))
    report = json.loads((folder / "report.json").read_text())
    absent = missed(report) | lost
    expected, undisturbed = simulated(plan.config, absent), simulated(plan.config)
    torch.testing.assert_close(saved_params(folder, plan.config), expected.params, rtol=0, atol=1e-6)
    assert bool(absent) != torch.equal(expected.params, undisturbed.params)
    assert enforced_guarantee(expected.report) == enforced_guarantee(undisturbed.report)
    assert enforced_guarantee(report) == enforced_guarantee(undisturbed.report)
    planned = own_events(plan, 1)
    for path, count in zip(ledgers(deployed), before, strict=True):
        own = ledger.read(path)
        assert {labels["run"] for labels in own.labels[count:]} == {str(first)}
        new = own.events[count:]
        if name == "central":
            assert new == planned, "charged whole, and once"
        else:
            answered = [labels["round"] for labels in own.labels[count:]]
            assert len(set(answered)) == len(answered), "no release is answered twice"
            assert set(range(ROUNDS)) - set(answered) <= set(absent)
            assert new == tuple(planned[release] for release in answered)
    again = finished(started(deployed, "resume", str(deployed.folder), str(first)))
    assert "exit code 2" in again
    assert "have rounds left" in again, again


def spent_by(plan: Plan, releases: int) -> float:
    """Epsilon of the first releases of a plan."""
    assert plan.budget is not None
    return float(epsilon(plan.events[:releases], plan.budget.delta, plan.budget.method).epsilon)


@pytest.mark.exhaustive
def test_a_run_that_is_killed_between_two_rounds_ends_at_the_same_model(deployed: Deployment) -> None:
    folder = deployed.folder / "out-between"
    before = [len(ledger.read(path).events) for path in ledgers(deployed)]
    process = begun(deployed, "local", folder)
    await_charges(deployed, folder, 2)
    plan = make_plan(Config.parse(read_run(folder)))
    kill_between_rounds(deployed, process, folder, plan)
    require_unfinished(folder)
    output = finished(resumed(deployed, folder))
    assert "exit code 0" in output, output + deployed.log("server")[-3000:]
    assert not lost_rounds(output), output
    result, undisturbed = require_ended(folder, StopReason.ROUNDS, resumed=1), simulated(plan.config)
    torch.testing.assert_close(result.params, undisturbed.params, rtol=0, atol=1e-6)
    assert ledger.read(folder / "ledger.jsonl").events == plan.events
    for path, count in zip(ledgers(deployed), before, strict=True):
        assert ledger.read(path).events[count:] == own_events(plan, 1)


@pytest.mark.exhaustive
def test_a_run_whose_nodes_are_all_killed_fails_and_is_resumed(deployed: Deployment) -> None:
    """Its folder says the truth before and after. The lost release is made of the server's noise alone."""
    folder = deployed.folder / "out-alone"
    process = begun(deployed, "local", folder, rounds=5, round_deadline=10, start_timeout=30)
    await_charges(deployed, folder, 2)
    for partition in range(NODES):
        deployed.end(f"node-{partition}", signal.SIGKILL)
    output = finished(process)
    assert "exit code 1" in output
    assert "its report says failed" in output, output
    require_ended(folder, StopReason.FAILED)
    for partition in range(NODES):
        deployed.give_new_key(partition)
    deployed.start_nodes(range(NODES))
    output = finished(resumed(deployed, folder))
    assert "exit code 0" in output, output + deployed.log("server")[-3000:]
    require_ended(folder, StopReason.ROUNDS, resumed=1)
    lost, config = lost_rounds(output), Config.parse(read_run(folder))
    assert len(lost) == 1, output
    report = json.loads((folder / "report.json").read_text())
    expected = simulated(config, missed(report) | {release: set(range(NODES)) for release in lost})
    torch.testing.assert_close(saved_params(folder, config), expected.params, rtol=0, atol=1e-6)
    assert ledger.read(folder / "ledger.jsonl").events == make_plan(config).events


@pytest.mark.exhaustive
def test_a_killed_run_of_silos_goes_on_with_their_own_states(deployed: Deployment) -> None:
    """The server is killed in a round, then a node with SIGKILL. The model is that of a replay from the seed
    in which the lost round leaves the model as it is, and silos that had begun it keep what they learnt."""
    folder, server = deployed.folder / "out-client", deployed.server
    before = [len(ledger.read(path).events) for path in ledgers(deployed)]
    rounds = 5
    process = begun(deployed, "client", folder, rounds=rounds, optimizer="dp-sgd", momentum=0.5)
    await_true(
        lambda: runs.latest(folder).get("round", 0) >= 2, lambda: deployed.log("server")[-3000:], 240.0
    )
    kill_server(deployed, process)
    require_unfinished(folder)
    [first] = numbers(deployed, folder)
    states = [SiloStateFile(path, first).path for path in ledgers(deployed)]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in states)
    deployed.end("node-1", signal.SIGKILL)  # its state is on its disk
    own = enrol.enrolled(server)[1]["node-id"]
    # Flower lets a node in again only once it has noticed that the first is gone.
    await_true(lambda: control_api.nodes(server)[own] != "online", lambda: deployed.log("node-1"), 240.0)
    deployed.start_nodes([1])
    output = finished(started(deployed, "resume", str(deployed.folder), str(first)), timeout=600)
    assert "exit code 0" in output, output + deployed.log("server")[-3000:] + deployed.log("node-0")[-3000:]

    config = Config.parse(read_run(folder))
    plan = make_plan(config)
    require_ended(folder, StopReason.ROUNDS, resumed=1)
    assert ledger.read(folder / "ledger.jsonl").events == plan.events, "each round is charged once"
    answered = []
    for path, count in zip(ledgers(deployed), before, strict=True):
        own = ledger.read(path)
        new = own.labels[count:]
        assert {labels["run"] for labels in new} == {str(first)}
        own_rounds = [labels["round"] for labels in new][:: config.silo_steps]
        assert len(set(own_rounds)) == len(own_rounds), "no round is answered twice"
        assert set(range(rounds)) - set(own_rounds) <= lost_rounds(output)
        assert own.events[count:] == tuple(e for r in own_rounds for e in round_events(plan, r))
        answered.append(own_rounds)
    assert not any(path.exists() for path in states), "they are deleted after the last round"
    replayed = replay(config.changed(nodes_own_data=False), answered, lost_rounds(output))
    torch.testing.assert_close(saved_params(folder, config), replayed, rtol=0, atol=1e-6)


def replay(config: Config, answered: Sequence[Sequence[int]], lost: set[int]) -> torch.Tensor:
    """The model (d,) after all rounds, whose silos answered these rounds; of lost rounds it has nothing."""
    silos = make_silo_worker(config.table())
    params = initial_params(silos.side.task, silos.plan.key())
    for number in range(config.rounds):
        asked = tuple(silo for silo, rounds in enumerate(answered) if number in rounds)
        request = TrainRequest(params, number, round_events(silos.plan, number), asked)
        changes = silos.train(request) if asked else ()
        params = params if number in lost else averaged(params, changes)
    return params
