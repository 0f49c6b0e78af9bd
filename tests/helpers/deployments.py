"""A deployment of `fedpriv deploy init` for tests: its scripts run as they are, ended by their own ids."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from fedpriv.deployment import control_api, enrol, keys
from fedpriv.deployment.flower_cli import FlowerError
from fedpriv.deployment.folders import Party, read_parties, read_server
from fedpriv.deployment.provision import Request, provision
from fedpriv.deployment.sample_data import write
from fedpriv.node.policy_file import read_policy
from fedpriv.node.setup import set_up
from helpers.hosted_grid import QUIET, ROOT, SCRIPTS, free_port


class Deployment:
    """A server and nodes with data, in ``folder``; nothing runs before :meth:`start`."""

    def __init__(self, folder: Path, nodes: int, examples: int) -> None:
        self.folder = folder
        ports = {name: free_port() for name in ("port", "control_port", "operator_port")}
        request = Request(nodes, **ports, operators=("main", "other"))  # type: ignore[arg-type]
        provision(folder, request)
        parties = [party for party in read_parties(folder) if party.is_node]
        write(parties, examples)
        for party in parties:
            self.accept_seeds(party.folder)
            set_up(read_policy(party.folder / "policy.toml"))
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.env = environment()
        os.environ["PYTHONPATH"] = self.env["PYTHONPATH"]

    @staticmethod
    def accept_seeds(node: Path) -> None:
        """Has a node's owner accept runs with a seed, so that results can be compared."""
        path = node / "policy.toml"
        path.write_text(path.read_text().replace("[allow]", "accept-seed = true\n\n[allow]"))

    @property
    def server(self) -> Party:
        """The server's party."""
        return read_server(self.folder)

    def start(self, name: str, folder: Path | None = None) -> None:
        """Runs a party's ``start.sh`` in a session of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                [str((folder or self.folder / name) / "start.sh")],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_server(self) -> None:
        """Starts the server, and waits until nodes can connect."""
        self.start("server")
        ports = (int(self.server.facts[fact]) for fact in ("port", "control-port", "operator-port"))
        for port in ports:
            await_true(lambda port=port: answers(port), lambda: self.log("server"))  # type: ignore[misc]

    def start_nodes(self, partitions: Sequence[int]) -> None:
        """Enrols all keys, starts these nodes, and waits until Flower sees them."""
        enrol.enrol(self.server)
        for partition in partitions:
            self.start(f"node-{partition}")
        wanted = {enrol.enrolled(self.server)[partition]["node-id"] for partition in partitions}

        def online() -> bool:
            with contextlib.suppress(FlowerError):
                states = control_api.nodes(self.server)
                return all(states.get(node) == "online" for node in wanted)
            return False

        await_true(online, lambda: "".join(self.log(f"node-{partition}") for partition in partitions))

    def give_new_key(self, partition: int) -> None:
        """Gives a node that has ended a new key, so that Flower lets it in before it misses the old one."""
        private, public = keys.make_node_key()
        own = self.folder / f"node-{partition}"
        (own / "node.key").write_bytes(private)
        (own / "node.key.pub").write_bytes(public)
        enrol.rotate(self.server, partition, own / "node.key.pub")

    def log(self, name: str) -> str:
        """What a party has printed."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def command(self, *arguments: str, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
        """``fedpriv ARGUMENTS``, with its output."""
        return subprocess.run(
            [str(SCRIPTS / "fedpriv"), *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )

    def running(self, name: str) -> bool:
        """Whether a party's process has not ended."""
        return self._started[name].poll() is None

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends a party's session with this signal."""
        process = self._started.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        self._await_end(process)

    @staticmethod
    def _await_end(process: subprocess.Popen[bytes]) -> None:
        """Waits until a party has ended, and ends what it left behind."""
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind in its session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        nodes = [self._started.pop(name) for name in [*self._started] if name != "server"]
        for process in nodes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in nodes:
            self._await_end(process)
        for name in [*self._started]:  # the server last: nodes take leave of it
            self.end(name)


def environment() -> dict[str, str]:
    """The environment of a party's programs: those of this Python, with this project."""
    path = os.pathsep.join([str(SCRIPTS), os.environ.get("PATH", "")])
    python = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **QUIET, "PATH": path, "PYTHONPATH": python}


def answers(port: int) -> bool:
    """Whether something listens at a port of loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def await_true(what: Callable[[], bool], told: Callable[[], str], timeout: float = 90.0) -> None:
    """Waits until ``what`` is true; raises TimeoutError with what ``told`` says."""
    deadline = time.monotonic() + timeout
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(told())
        time.sleep(0.3)
