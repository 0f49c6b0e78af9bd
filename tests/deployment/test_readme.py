"""The commands of deploy/README.md: those for one machine run as they stand, the others are commands."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
import typer.main
import yaml
from helpers.deployments import environment
from helpers.hosted_grid import ROOT, free_port

from fedpriv.cli import app
from fedpriv.deployment.provision import Request, provision

TEXT = (ROOT / "deploy/README.md").read_text()
ONE_MACHINE = TEXT.partition("\n## Three machines\n")[0]
CONTAINERS = TEXT.partition("\n## Containers\n")[2].partition("\n## ")[0]
INIT = "fedpriv deploy init deployment --nodes 3\n"
LOOK = "fedpriv deploy check --running deployment"  # which a person repeats
LIMIT = 300.0  # seconds for one block, and for all looks of one


def blocks(text: str, kind: str = "sh") -> list[str]:
    """The fenced blocks of a text, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


class Walk:
    """Someone who follows the guide in ``folder``, with a terminal for each script that goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = environment()
        self.terminals: list[tuple[subprocess.Popen[bytes], Path]] = []

    def carry_out(self, block: str) -> str:
        """Carries a block out as the text around it says; its output, if it ends."""
        if block.endswith("/start.sh\n"):
            self._open(block)
            return ""
        deadline = time.monotonic() + LIMIT
        while True:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT,
            )
            if done.returncode == 0:
                return done.stdout
            if not block.startswith(LOOK) or time.monotonic() > deadline:
                raise AssertionError(block + done.stdout + self.logs())
            time.sleep(1.0)

    def _open(self, block: str) -> None:
        log = self.folder / f"terminal-{len(self.terminals)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {block}"],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.terminals.append((process, log))

    def logs(self) -> str:
        """The ends of what all terminals show."""
        return "".join(f"\n--- {log.name}\n{log.read_text()[-2000:]}" for _, log in self.terminals)

    def interrupt(self) -> None:
        """Ctrl-C in each terminal, the nodes' first; nothing may be left of what ran there."""
        for process, _ in reversed(self.terminals):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=60)
            with pytest.raises(ProcessLookupError):
                os.killpg(process.pid, 0)
        self.terminals.clear()

    def close(self) -> None:
        """Ends what is left after a failure."""
        for process, _ in self.terminals:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=60)


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    made = Walk(tmp_path)
    yield made
    made.close()


def shown(wanted: str, output: str) -> bool:
    """Whether a block of text of the guide is in an output; ``...`` stands for anything."""
    lines = [line for line in wanted.splitlines() if line != "..."]
    patterns = [re.escape(line).replace(re.escape("..."), ".*?") for line in lines]
    return all(re.search(f"^{pattern}$", output, re.MULTILINE) for pattern in patterns)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1800)
def test_the_guide_for_one_machine_works_word_for_word(walk: Walk) -> None:
    """Steps 2 to 7; other ports than the guide's, since tests run beside each other."""
    ports = " ".join(f"--{name}-port {free_port()}" for name in ("control", "operator"))
    steps = {title[0]: text for title, text in _sections(ONE_MACHINE).items() if title[0].isdigit()}
    assert sorted(steps) == list("1234567")
    assert steps["2"].count(INIT) == 1
    steps["2"] = steps["2"].replace(INIT, f"{INIT.strip()} --port {free_port()} {ports}\n")
    begun = time.monotonic()
    output = {number: [walk.carry_out(block) for block in blocks(steps[number])] for number in "23456"}
    took = time.monotonic() - begun
    print(f"steps 2 to 6 took {took:.0f} s")
    assert output["5"][-1].count("online") == 3
    central, status = output["6"]
    [wanted] = blocks(steps["6"], "text")
    assert shown(wanted, central), central
    assert "its report says rounds" in status
    [run] = re.findall(r"^run (\d+) ended", status, re.MULTILINE)
    assert re.search(rf"^{run} +5 +0$", status, re.MULTILINE), status  # 5 releases with the node's own noise
    walk.interrupt()
    for block in (*blocks(steps["4"])[:2], *blocks(steps["5"])):  # all but the enrolment
        again = walk.carry_out(block)
    assert again.count("online") == 3
    spent = walk.carry_out(blocks(steps["6"])[1].splitlines(keepends=True)[1])
    assert spent in status
    walk.interrupt()


def _sections(text: str) -> dict[str, str]:
    found = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def lines(text: str) -> list[list[str]]:
    """The words of each command of fedpriv in the blocks of a text, however it is reached."""
    found = []
    for line in "".join(blocks(text)).splitlines():
        alone = re.sub(r"^for .*; do (.*); done$", r"\1", line.partition("  #")[0])
        words = shlex.split(re.sub(r"\$\w+|\bRUN\b", "0", alone))
        for start in (["fedpriv"], ["in_image"]):
            if words[:1] == start:
                found.append(words[1:])
        if words[:3] == ["docker", "compose", "exec"] and words[4] == "fedpriv":
            found.append(words[5:])
    return found


def parsed(words: list[str]) -> None:
    """Raises a usage error of click for words that are no command with its arguments."""
    command: click.Command = typer.main.get_command(app)
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    command.make_context("fedpriv", list(words))


@pytest.mark.parametrize("words", lines(TEXT), ids=" ".join)
def test_each_command_of_the_guide_is_one(words: list[str]) -> None:
    parsed(words)


def test_the_commands_for_containers_fit_the_compose_file(tmp_path: Path) -> None:
    provision(tmp_path / "deployment", Request(3, ("server",), "0.0.0.0"))
    compose = yaml.safe_load((tmp_path / "deployment/compose.yaml").read_text())
    commands = [shlex.split(line) for block in blocks(CONTAINERS) for line in block.splitlines()]
    ups = [words for words in commands if words[:3] == ["docker", "compose", "up"]]
    execs = [words for words in commands if words[:3] == ["docker", "compose", "exec"]]
    assert [words[-1] for words in ups] == ["server", "--wait"]
    assert len(execs) == 4
    for words in execs:
        assert words[3] in compose["services"]
        for path in (word for word in words if word.endswith(".toml")):
            assert (tmp_path / "deployment" / words[3] / path.removeprefix("/party/")).is_file()
    image = {service["image"] for service in compose["services"].values()}
    assert image == {next(words[words.index("-t") + 1] for words in commands if "-t" in words)}
    user = {service["user"] for service in compose["services"].values()}
    assert user == {next(words[3] for words in commands if words[:2] == ["sudo", "chown"])}
    order = ["deploy init", "sample-data", "node init", "chown", "up", "enrol", "deploy run"]
    text = "\n".join(" ".join(words) for words in commands)
    assert sorted(order, key=text.index) == order
