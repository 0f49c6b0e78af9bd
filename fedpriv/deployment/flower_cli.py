"""Flower's command ``flwr`` for a deployment: starting a run, and following its log.

Only the documented commands and their JSON output are used. They talk to the SuperLink's control API, on the
server's machine over its loopback, from an operator's machine over the control proxy with the operator's
certificate (:mod:`fedpriv.deployment.certified`). ``server`` is either party. Short questions are asked
without a command (:mod:`fedpriv.deployment.control_api`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpriv._internal import validation
from fedpriv._internal.settings import toml_value
from fedpriv.deployment import operators
from fedpriv.deployment.folders import Party, joined

CONNECTION = "deployment"
_TIMEOUT = 120.0  # seconds for one command
_PATIENCE = 5.0  # seconds for a connection on this machine
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
_MOST_SHOWN = 400  # characters of Flower's own error


class FlowerError(validation.FedprivError, RuntimeError):
    """Flower refused, or does not answer; the message has Flower's reason."""


def environment(server: Party) -> dict[str, str]:
    """The environment of Flower's commands: this deployment's configuration and nothing else of Flower."""
    return {**os.environ, **_QUIET, "FLWR_HOME": str(server.folder / "flower")}


def control_address(server: Party) -> tuple[str, Path]:
    """Where this party reaches the Control API, as ``host:port``, and the authorities of its certificate."""
    if server.is_operator:
        return joined(*server.server_address), server.roots
    return f"127.0.0.1:{server.facts.get('control-port')}", server.loopback_roots


def write_connection(server: Party) -> None:
    """Writes Flower's configuration. It needs absolute paths, so it is written again after a move."""
    home = server.folder / "flower"
    home.mkdir(mode=0o700, exist_ok=True)
    address, roots = control_address(server)
    lines = [
        "[superlink]",
        f'default = "{CONNECTION}"',
        "",
        f"[superlink.{CONNECTION}]",
        f"address = {toml_value(address)}",
        f"root-certificates = {toml_value(str(roots))}",
    ]
    (home / "config.toml").write_text("\n".join(lines) + "\n")


def command(*arguments: str) -> list[str]:
    """The command line of one of Flower's programs, of this Python's environment."""
    program = Path(sysconfig.get_path("scripts")) / arguments[0]
    return [str(program) if program.exists() else arguments[0], *arguments[1:]]


def _flwr(server: Party, *arguments: str) -> list[str]:
    """The command line of ``flwr``, for an operator with the certificate."""
    if not server.is_operator:
        return command("flwr", *arguments)
    files = str(server.path("certificate")), str(server.path("certificate-key"))
    return [sys.executable, "-m", "fedpriv.deployment.certified", *files, *arguments]


def call(server: Party, *arguments: str) -> dict[str, Any]:
    """The JSON answer of ``flwr ARGUMENTS --format json``. Raises FlowerError if Flower refuses."""
    write_connection(server)
    try:
        result = subprocess.run(
            _flwr(server, *arguments, "--format", "json"),
            env=environment(server),
            cwd=server.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise FlowerError(f"`flwr {arguments[0]}` did not end within {_TIMEOUT:g} s") from None
    answer = _json(result.stdout)
    if result.returncode == 0 and answer.get("success"):
        return answer
    reason = str(answer.get("error-message") or result.stderr or result.stdout)
    raise refused(server, f"`flwr {' '.join(arguments[:2])}`", reason)


def refused(server: Party, what: str, reason: str) -> FlowerError:
    """The error for ``what`` failed: with Flower's ``reason``, or with what stands in front of Flower."""
    text = " ".join(reason.split())[:_MOST_SHOWN] or "no reason given"
    if server.is_operator:
        try:
            text = operators.refusal(server) or text
        except operators.UnreachableError as error:
            return FlowerError(f"{error}: is the server started, and does the firewall let you out?")
    elif absent := _without_superlink(server):
        return FlowerError(absent)
    return FlowerError(f"{what} failed: {text}")


def _without_superlink(server: Party) -> str:
    """What to do if nothing listens at the port of the server's SuperLink; "" if something does."""
    address = "127.0.0.1", int(server.facts["control-port"])
    try:
        socket.create_connection(address, timeout=_PATIENCE).close()
    except OSError:
        text = f"the server does not run here: its SuperLink does not listen on {address[0]}:{address[1]}"
        return f"{text}; {server.folder}/start.sh starts it, on the server's machine"
    return ""


def _json(text: str) -> dict[str, Any]:
    """The JSON object that ends a command's output; other lines may come before it."""
    start = text.find("{")
    try:
        found = json.loads(text[start:]) if start >= 0 else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def start_run(server: Party, app: Path, settings: Sequence[str]) -> int:
    """Starts a run of the app and returns its id."""
    options = [part for setting in settings for part in ("--run-config", setting)]
    return int(call(server, "run", str(app), CONNECTION, *options)["run-id"])


def follow(server: Party, run: int) -> subprocess.Popen[str]:
    """A process that prints the run's log to its standard output until the run ends."""
    return subprocess.Popen(
        _flwr(server, "log", str(run), CONNECTION, "--stream"),
        env=environment(server),
        cwd=server.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
