"""A deployment's run that was killed goes on, and neither side has charged less than it answered."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from helpers.deployments import Deployment, await_true
from helpers.hosted_grid import SCRIPTS
from helpers.toy_app import saved_params

from fedpriv.accounting import ledger
from fedpriv.config.builders import initial_params
from fedpriv.config.plan import make_plan
from fedpriv.config.reading import read_run
from fedpriv.config.schema import Config
from fedpriv.deployment import enrol, flower_cli, runs
from fedpriv.node.own_events import own_events
from fedpriv.node.policy_file import read_policy
from fedpriv.node.silo import TrainRequest, averaged, make_silo_worker, round_events
from fedpriv.node.silo_state import SiloStateFile

pytestmark = [pytest.mark.slow, pytest.mark.processes]

NODES, ROUNDS = 2, 12


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("resumed") / "d", NODES, examples=300) as made:
        made.start_server()
        made.start_nodes(range(NODES))
        yield made


def started(deployed: Deployment, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(SCRIPTS / "fedpriv"), "deploy", *arguments],
        env=deployed.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str], timeout: float = 300.0) -> str:
    output, _ = process.communicate(timeout=timeout)
    return f"exit code {process.returncode}\n{output}"


def await_round(deployed: Deployment, folder: Path, wanted: int) -> None:
    await_true(
        lambda: runs.latest(folder).get("round", 0) >= wanted,
        lambda: deployed.log("server")[-3000:] + deployed.log("node-0")[-2000:],
        timeout=240.0,
    )


def server_apps(deployed: Deployment) -> list[int]:
    """The ids of the processes of ServerApps, which Flower starts in a session of its own."""
    address, found = f"127.0.0.1:{deployed.server.facts['control-port']}", []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            text = path.read_text()
            if "flwr-serverapp" in text and address in text:
                found.append(int(path.parent.name))
    return found


def kill_server_app(deployed: Deployment, process: subprocess.Popen[str]) -> None:
    for number in server_apps(deployed):
        os.kill(number, signal.SIGKILL)
    assert "exit code 1" in finished(process)


def kill_server(deployed: Deployment, process: subprocess.Popen[str]) -> None:
    """The SuperLink, the proxy and the ServerApp are killed, as by a power cut; the server starts again."""
    deployed.end("server", signal.SIGKILL)
    for number in server_apps(deployed):
        os.kill(number, signal.SIGKILL)
    process.kill()
    process.wait()
    deployed.start_server()
    deployed.start_nodes([k for k in range(NODES) if not deployed.running(f"node-{k}")])


@pytest.mark.parametrize(
    ("name", "kills"), [("central", [kill_server]), ("local", [kill_server_app, kill_server])]
)
def test_a_killed_run_goes_on(
    deployed: Deployment, name: str, kills: Sequence[Callable[[Deployment, subprocess.Popen[str]], None]]
) -> None:
    folder, server = deployed.folder / f"out-{name}", deployed.server
    before = [len(ledger.read(path).events) for path in ledgers(deployed)]
    settings = [f"--set=out={folder}", f"--set=rounds={ROUNDS}", "--set=evaluate-every=1"]
    settings += ["--set=examples-per-client=300", f"--set=clients={NODES}"]
    process = started(deployed, "run", str(deployed.folder), str(server.folder / f"{name}.toml"), *settings)
    for count, kill in enumerate(kills, 1):
        await_round(deployed, folder, 2 * count)
        kill(deployed, process)
        assert not (folder / "report.json").exists()
        numbers = [run for run, path in runs.folders(server).items() if path == folder]
        process = started(deployed, "resume", str(deployed.folder), str(numbers[-1]))
    output, first = finished(process), numbers[0]
    assert "exit code 0" in output, output + deployed.log("server")[-3000:] + deployed.log("node-0")[-3000:]
    assert "the run goes on after round" in output

    plan = make_plan(Config.parse(read_run(folder)))
    record = ledger.read(folder / "ledger.jsonl")
    report = json.loads((folder / "report.json").read_text())
    assert report["result"]["stopped"] == "rounds"
    assert len(report["result"]["resumed after rounds"]) == len(kills), report["result"]
    assert plan.budget is not None
    assert runs.latest(folder)["epsilon"] <= plan.budget.epsilon
    assert len(record.events) >= ROUNDS
    for path, count in zip(ledgers(deployed), before, strict=True):
        own = ledger.read(path)
        assert {labels["run"] for labels in own.labels[count:]} == {str(first)}
        new = own.events[count:]
        if name == "central":
            assert new == own_events(plan), "charged whole, and once"
        else:
            numbers = [labels["round"] for labels in own.labels[count:]]
            assert len(set(numbers)) == len(numbers), "no release is answered twice"
            assert ROUNDS - 2 <= len(numbers) <= len(record.events)
    again = finished(started(deployed, "resume", str(deployed.folder), str(first)))
    assert "exit code 2" in again
    assert "have rounds left" in again or "have budget left" in again, again


def test_a_killed_run_of_silos_goes_on_with_their_own_states(deployed: Deployment) -> None:
    """The server is killed in a round, then a node with SIGKILL. The model is that of a replay from the seed
    in which the lost round leaves the model as it is, and silos that had begun it keep what they learnt."""
    folder, server = deployed.folder / "out-client", deployed.server
    before = [len(ledger.read(path).events) for path in ledgers(deployed)]
    rounds = 5
    settings = [f"--set=out={folder}", f"--set=rounds={rounds}", "--set=evaluate-every=1", "--set=seed=5"]
    settings += ["--set=examples-per-client=300", f"--set=clients={NODES}", "--set=optimizer=dp-sgd"]
    settings += ["--set=momentum=0.5"]
    process = started(deployed, "run", str(deployed.folder), str(server.folder / "client.toml"), *settings)
    await_round(deployed, folder, 2)
    kill_server(deployed, process)
    [first] = [run for run, path in runs.folders(server).items() if path == folder]
    states = [SiloStateFile(path, first).path for path in ledgers(deployed)]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in states)
    deployed.end("node-1", signal.SIGKILL)  # its state is on its disk
    own = enrol.enrolled(server)[1]["node-id"]
    # Flower lets a node in again only once it has noticed that the first is gone.
    await_true(lambda: flower_cli.nodes(server)[own] != "online", lambda: deployed.log("node-1"), 240.0)
    deployed.start_nodes([1])
    output = finished(started(deployed, "resume", str(deployed.folder), str(first)), timeout=600)
    assert "exit code 0" in output, output + deployed.log("server")[-3000:] + deployed.log("node-0")[-3000:]

    config = Config.parse(read_run(folder))
    plan = make_plan(config)
    report = json.loads((folder / "report.json").read_text())
    assert report["result"]["stopped"] == "rounds"
    assert ledger.read(folder / "ledger.jsonl").events == plan.events, "each round is charged once"
    answered = []
    for path, count in zip(ledgers(deployed), before, strict=True):
        own = ledger.read(path)
        new = own.labels[count:]
        assert {labels["run"] for labels in new} == {str(first)}
        numbers = [labels["round"] for labels in new][:: config.silo_steps]
        assert len(set(numbers)) == len(numbers), "no round is answered twice"
        assert set(range(rounds)) - set(numbers) <= lost_rounds(output)
        assert own.events[count:] == tuple(e for r in numbers for e in round_events(plan, r))
        answered.append(numbers)
    assert not any(path.exists() for path in states), "they are deleted after the last round"
    simulated = replay(config.changed(nodes_own_data=False), answered, lost_rounds(output))
    torch.testing.assert_close(saved_params(folder, config), simulated, rtol=0, atol=1e-6)


def lost_rounds(output: str) -> set[int]:
    """The numbers, from 0, of rounds that the continued run goes on without."""
    found = re.search(r"goes on after round (\d+)(?:, and (\d+) charged after it)?", output)
    assert found, output
    return {int(found[1]) + k for k in range(int(found[2] or 0))}


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


def ledgers(deployed: Deployment) -> list[Path]:
    """The nodes' ledgers; of a node that has charged nothing, too."""
    return [read_policy(deployed.folder / f"node-{k}/policy.toml").ledger for k in range(NODES)]
