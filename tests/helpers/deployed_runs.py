"""Runs of a deployment that tests watch and disturb: begun, killed at a wanted round, and continued."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from fedpriv._internal import run_files
from fedpriv.accounting import LedgerError, ledger
from fedpriv.config.plan import Plan
from fedpriv.node.policy_file import read_policy
from fedpriv.runs import checkpoints
from helpers.deployments import Deployment
from helpers.hosted_grid import SCRIPTS

_LOOK = 0.005  # seconds between looks for a charge: a round of a test takes some tenths of a second


def started(deployed: Deployment, *arguments: str) -> subprocess.Popen[str]:
    """`fedpriv deploy ARGUMENTS`, which goes on."""
    return subprocess.Popen(
        [str(SCRIPTS / "fedpriv"), "deploy", *arguments],
        env=deployed.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str], timeout: float = 300.0) -> str:
    """The exit code and the output of a command, after its end."""
    output, _ = process.communicate(timeout=timeout)
    return f"exit code {process.returncode}\n{output}"


def ledgers(deployed: Deployment) -> list[Path]:
    """The nodes' ledgers; of a node that has charged nothing, too."""
    policies = [
        deployed.folder / f"node-{partition}/policy.toml" for partition in range(deployed.server.nodes)
    ]
    return [read_policy(policy).ledger for policy in policies]


def await_charges(deployed: Deployment, folder: Path, wanted: int) -> None:
    """Waits until the run's ledger has so many charges: then the last of these releases goes on."""
    deadline = time.monotonic() + 240.0
    while charged(folder) < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(deployed.log("server")[-3000:] + deployed.log("node-0")[-2000:])
        time.sleep(_LOOK)


def charged(folder: Path) -> int:
    """The number of events in the run's ledger; 0 while it is written or not there."""
    with contextlib.suppress(OSError, LedgerError):
        return len(ledger.read(folder / "ledger.jsonl").events)
    return 0


def server_apps(deployed: Deployment) -> list[int]:
    """The ids of the processes of ServerApps, which Flower starts in a session of its own."""
    address, found = f"127.0.0.1:{deployed.server.facts['control-port']}", []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            text = path.read_text()
            if "flwr-serverapp" in text and address in text:
                found.append(int(path.parent.name))
    return found


def send(processes: Sequence[int], number: signal.Signals) -> None:
    """Sends these processes a signal, if they are there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def kill_server_app(deployed: Deployment, process: subprocess.Popen[str]) -> None:
    """Kills the ServerApp. The command that watches its run says that it has failed."""
    send(server_apps(deployed), signal.SIGKILL)
    assert "exit code 1" in finished(process)


def kill_server_app_alone(deployed: Deployment, process: subprocess.Popen[str]) -> None:
    """Kills the ServerApp and the command that watches it. Flower takes a minute to notice, and the operator
    does not wait for that."""
    send(server_apps(deployed), signal.SIGKILL)
    process.kill()
    process.communicate()


def kill_server(deployed: Deployment, process: subprocess.Popen[str]) -> None:
    """Kills the SuperLink, the proxy and the ServerApp, as a power cut does, and starts the server again."""
    deployed.end("server", signal.SIGKILL)
    send(server_apps(deployed), signal.SIGKILL)
    process.kill()
    process.communicate()
    deployed.start_server()
    partitions = range(deployed.server.nodes)
    deployed.start_nodes([k for k in partitions if not deployed.running(f"node-{k}")])


def kill_between_rounds(
    deployed: Deployment, process: subprocess.Popen[str], folder: Path, plan: Plan
) -> None:
    """Kills the ServerApp while its last round is on disk and the next one is not charged.

    It is stopped while the test looks whether that is so, and goes on if it is not.
    """
    state, apps = folder / run_files.STATE, server_apps(deployed)
    while process.poll() is None:
        last = state.stat().st_mtime_ns
        while state.stat().st_mtime_ns == last and process.poll() is None:
            time.sleep(_LOOK / 10)
        send(apps, signal.SIGSTOP)
        with contextlib.suppress(LedgerError):
            reached = checkpoints.read(folder, plan)
            if reached.state.step and not reached.lost:
                kill_server_app(deployed, process)
                return
        send(apps, signal.SIGCONT)
    raise AssertionError(f"the run ended before it was killed\n{finished(process)}")


def lost_rounds(output: str) -> set[int]:
    """The numbers, from 0, of charged rounds without an answer that the continued run tells of."""
    found = re.search(r"goes on after round (\d+)(?:, and (\d+) charged after it)?", output)
    assert found, output
    return {int(found[1]) + k for k in range(int(found[2] or 0))}
