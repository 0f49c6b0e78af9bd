"""Flower's own processes for tests: free ports, a separate FLWR_HOME, bounded waits, ended by pid."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "OMP_NUM_THREADS": "1",
}


def free_port() -> int:
    """A free TCP port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Federation:
    """A SuperLink of its own in ``home``, and the SuperNodes started beside it.

    Args:
        home: a new folder; becomes FLWR_HOME and takes the logs.
        simulation: whether the SuperLink simulates its nodes with Flower's own engine.
    """

    def __init__(self, home: Path, simulation: bool = False) -> None:
        if not (SCRIPTS / "flower-superlink").exists():
            pytest.skip("Flower's commands are not installed beside this Python")
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.port = home, free_port()
        path = os.pathsep.join([str(SCRIPTS), os.environ.get("PATH", "")])
        self._env = {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}
        self._env["RAY_ADDRESS"] = "local"  # else Flower's engine joins whatever Ray this machine runs
        self._processes: list[subprocess.Popen[bytes]] = []
        connection = f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "test"\n\n[superlink.test]\n{connection}')
        kind = ["--simulation"] if simulation else []
        local = ["--insecure", "--host", "127.0.0.1", "--port", str(self.port)]
        self._superlink = self._start(
            "superlink",
            ["flower-superlink", *local, *kind, "--disable-runtime-dependency-installation"],
        )
        try:
            self._await_health()
        except BaseException:
            self.close()
            raise

    def supernode(self, partition: int, partitions: int, data_file: Path | None = None) -> None:
        """Start a SuperNode that is this partition, owns this file, and takes a run's seed."""
        config = f"partition-id={partition} num-partitions={partitions} accept-seed=true"
        if data_file is not None:
            config += f' data-file="{data_file}"'
        local = ["--insecure", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        self._start(f"supernode-{partition}", ["flower-supernode", *local, "--node-config", config])

    def owner_node(self, name: str, policy: Path) -> subprocess.Popen[bytes]:
        """Set up and start ``fedpriv node run`` with this policy."""
        made = subprocess.run([str(SCRIPTS / "fedpriv"), "node", "init", str(policy)], env=self._env)
        assert made.returncode == 0
        return self._start(name, ["fedpriv", "node", "run", str(policy)])

    def run(
        self,
        run_config: Mapping[str, object],
        federation_config: str = "",
        app: Path = ROOT,
        timeout: float = 480.0,
    ) -> str:
        """``flwr run`` the app and stream its log until it ends; the log. Bounded by ``timeout`` seconds."""
        options = ["--run-config", " ".join(f"{k}={_toml(v)}" for k, v in run_config.items())]
        if federation_config:
            options += ["--federation-config", federation_config]
        result = subprocess.run(
            [str(SCRIPTS / "flwr"), "run", str(app), "test", "--stream", *options],
            env=self._env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    def log(self, name: str) -> str:
        """The log of ``superlink`` or ``supernode-K`` so far."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("wb") as log:
            flower = command[0].startswith("flower-")
            patient = [sys.executable, "-m", "fedpriv.deployment.starts", command[0]]
            process = subprocess.Popen(
                [*(patient if flower else [str(SCRIPTS / command[0])]), *command[1:]],
                env=self._env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def _await_health(self, timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            assert self._superlink.poll() is None, self.log("superlink")
            with contextlib.suppress(URLError, OSError):
                urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1).close()
                return
            time.sleep(0.1)
        raise TimeoutError(self.log("superlink"))

    def close(self) -> None:
        """End what was started, SuperNodes first, each by its own handle; children end with them."""
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def python(*arguments: str, timeout: float = 120.0) -> str:
    """Run this Python on ``arguments`` in the project's root; its output."""
    result = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
