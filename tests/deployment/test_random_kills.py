"""Parties of a deployment are killed at random moments; no side has charged less than it released.

    FEDPRIV_KILLS=10 python -m pytest -n0 -m exhaustive tests/deployment/test_random_kills.py

``FEDPRIV_KILLS`` is the number of kills, 50 by default; ``FEDPRIV_KILLS_SEED`` repeats a series. The test is
the operator: it starts a party again that has ended, as a unit does, and continues the run by
`fedpriv deploy resume FOLDER RUN`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.deployments import Deployment, await_true
from helpers.hosted_grid import SCRIPTS

from fedpriv.accounting import ledger
from fedpriv.config.plan import make_plan
from fedpriv.config.reading import read_run
from fedpriv.config.schema import Config
from fedpriv.deployment import runs
from fedpriv.node.journal import ANSWERED, read_journal
from fedpriv.node.own_events import own_events
from fedpriv.node.policy_file import Policy, read_policy
from fedpriv.node.setup import require_set_up
from fedpriv.runs import checkpoints

KILLS = int(os.environ.get("FEDPRIV_KILLS", "50"))

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.timeout(600 + 300 * KILLS),
]

NODES, ROUNDS = 2, 30
A_RUN = 12  # the most kills in one run; so few runs that the nodes' limits hold all of them
AFTER = 6.0  # the most seconds from a run's first charge, or from the last kill, to the next kill
BOUND = 420.0  # seconds until a run goes on or ends
VICTIMS = ("ServerApp", "SuperLink", "SuperExec", "proxy", "node-0", "node-1")


class Operator:
    """Runs a deployment's parties as units do: what has ended is started again."""

    def __init__(self, deployed: Deployment) -> None:
        self.deployed, self.names = deployed, ("server", *(f"node-{k}" for k in range(NODES)))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            for name in self.names:
                if not self.deployed.running(name):
                    self.deployed.end(name, signal.SIGKILL)  # what its unit's group still has
                    self.deployed.start(name)

    def __enter__(self) -> Operator:
        self.deployed.start_server()
        self.deployed.start_nodes(range(NODES))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def process(self, victim: str) -> int | None:
        """The id of a party's process now, if it has one."""
        control = f"127.0.0.1:{self.deployed.server.facts['control-port']}"
        here = {"proxy": "server"}.get(victim, victim)
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                text = (path / "cmdline").read_text().replace("\0", " ")
                own = Path(os.readlink(path / "cwd")) == self.deployed.folder / here
                if (
                    (victim == "ServerApp" and "flwr-serverapp" in text and control in text)
                    or (victim == "SuperExec" and "flower-superexec" in text and control in text)
                    or (victim == "SuperLink" and f"--port {control.split(':')[1]}" in text)
                    or (victim == "proxy" and own and "deploy proxy" in text)
                    or (victim.startswith("node") and own and "node run" in text)
                ):
                    return int(path.name)
        return None


def called(deployed: Deployment, *arguments: str) -> subprocess.Popen[str]:
    """`fedpriv deploy ARGUMENTS`; its output is beside the parties' logs."""
    with (deployed.folder / "commands.log").open("a") as log:
        return subprocess.Popen(
            [str(SCRIPTS / "fedpriv"), "deploy", *arguments],
            env=deployed.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )


def ended(process: subprocess.Popen[str]) -> None:
    """Ends a command of the operator that still watches its run."""
    process.terminate()
    process.wait(timeout=60)


class Series:
    """One run after the other, each killed and resumed until it finishes."""

    def __init__(self, operator: Operator, chance: random.Random) -> None:
        self.operator, self.deployed, self.chance = operator, operator.deployed, chance
        self.kills, self.finished, self.resumed = Counter[str](), 0, 0

    def told(self) -> str:
        """What the parties have printed last."""
        return "\n".join(
            f"--- {name}\n{self.deployed.log(name)[-2500:]}" for name in ("commands", *self.operator.names)
        )

    def run(self, number: int, kills: int) -> int:
        """A whole run with at most so many kills; the number of kills."""
        name = ("local", "central")[number % 2]
        folder = self.deployed.folder / f"out-{number}"
        settings = [f"--set=out={folder}", f"--set=rounds={ROUNDS}", "--set=evaluate-every=1"]
        settings += ["--set=examples-per-client=100", f"--set=clients={NODES}"]
        before = [len(require_set_up(policy).events) for policy in self.policies()]
        file = str(self.deployed.server.folder / f"{name}.toml")
        process = called(self.deployed, "run", str(self.deployed.folder), file, *settings)
        done = 0
        while not self.complete(folder):
            going = (folder / "ledger.jsonl").exists() and self.operator.process("ServerApp") is not None
            if process.poll() is not None and not self.complete(folder):
                process = self.again(folder, file, settings)
            elif going and done < kills:
                time.sleep(self.chance.uniform(0.0, AFTER))
                done += self.kill(folder)
                self.check(name, folder, before)
                self.settle(folder, process)
            else:
                self.settle(folder, process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        ended(process)
        self.finished += 1
        self.check(name, folder, before)
        return done

    def policies(self) -> list[Policy]:
        """The nodes' policies."""
        return [read_policy(self.deployed.folder / f"node-{k}/policy.toml") for k in range(NODES)]

    def complete(self, folder: Path) -> bool:
        """Whether the run's own report says that it has reached its rounds or its budget."""
        reason = checkpoints.stopped(folder) if (folder / "report.json").exists() else None
        return reason is not None and reason.complete

    def kill(self, folder: Path) -> int:
        """Kills a random party, if it is there; the number of kills."""
        victim = self.chance.choice(VICTIMS)
        process = self.operator.process(victim)
        if process is None:
            return 0
        os.kill(process, signal.SIGKILL)
        self.kills[victim] += 1
        print(f"killed {victim} after round {runs.latest(folder).get('round', 0)}", flush=True)
        return 1

    def settle(self, folder: Path, process: subprocess.Popen[str]) -> None:
        """Waits until the run makes a round, or its command has ended."""
        first = runs.latest(folder).get("round", 0)
        there = time.monotonic()

        def over() -> bool:
            nonlocal there
            if self.operator.process("ServerApp") is not None:
                there = time.monotonic()
            if time.monotonic() - there > 60.0:  # it is gone, and the command waits for a SuperLink's word
                ended(process)
            moved = runs.latest(folder).get("round", 0) > first
            return moved or process.poll() is not None or self.complete(folder)

        await_true(over, self.told, timeout=BOUND)

    def again(self, folder: Path, file: str, settings: list[str]) -> subprocess.Popen[str]:
        """Continues the run; where nothing was charged, starts it again."""
        numbers = [run for run, path in runs.folders(self.deployed.server).items() if path == folder]
        if not (folder / "config.toml").is_file():
            return called(self.deployed, "run", str(self.deployed.folder), file, *settings)
        process = called(self.deployed, "resume", str(self.deployed.folder), str(numbers[-1]))
        time.sleep(2.0)
        self.resumed += 1
        return process

    def check(self, name: str, folder: Path, before: list[int]) -> None:
        """No side has charged less than it released, nothing is answered twice, and every ledger parses."""
        if not (folder / "config.toml").is_file():
            return
        made = int(runs.latest(folder).get("round", 0))  # read first: charges come before rounds
        answers = [self.answers(folder, policy) for policy in self.policies()]
        record = ledger.read(folder / "ledger.jsonl")
        assert len(record.events) >= made, "the server has charged less than it released"
        plan = make_plan(Config.parse(read_run(folder)))
        first = str(self.numbers(folder)[0])
        for policy, count, answered in zip(self.policies(), before, answers, strict=True):
            own = require_set_up(policy)
            assert len(set(answered)) == len(answered), "a node has answered a release twice"
            new = [
                (event, labels)
                for event, labels in zip(own.events[count:], own.labels[count:], strict=True)
                if labels["run"] == first
            ]
            assert len(new) == len(own.events) - count, "a charge of no run that was started"
            if name == "central":
                assert [event for event, _ in new] == (list(own_events(plan)) if new else [])
                assert new or not answered, "a node has answered and not charged"
            else:
                charged = [int(labels["round"]) for _, labels in new]
                assert len(set(charged)) == len(charged)
                assert set(answered) <= set(charged), "a node has charged less than it answered"

    def numbers(self, folder: Path) -> list[int]:
        """Flower's numbers of a run and of its continuations."""
        return [run for run, path in runs.folders(self.deployed.server).items() if path == folder]

    def answers(self, folder: Path, policy: Policy) -> list[int]:
        """The releases of a run that a node has answered, as its journal has them."""
        numbers = {str(number) for number in self.numbers(folder)}
        return [
            int(line["group"])
            for line in read_journal(policy.journal)
            if line["event"] == ANSWERED and str(line["run"]) in numbers and line["message"] == "train"
        ]


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(tmp_path / "d", NODES, examples=100) as made:
        yield made


def test_kills_at_random_moments_lose_no_charge(deployed: Deployment) -> None:
    seed = int(os.environ.get("FEDPRIV_KILLS_SEED", str(secrets.randbelow(10**9))))
    print(f"FEDPRIV_KILLS_SEED={seed}")
    with Operator(deployed) as operator:
        series, done, number = Series(operator, random.Random(seed)), 0, 0
        while done < KILLS:
            done += series.run(number, min(KILLS - done, A_RUN))
            number += 1
        print(
            json.dumps(
                {"kills": series.kills, "runs": series.finished, "resumed": series.resumed, "seed": seed}
            )
        )
        assert series.finished == number
