"""Flower's Control API, asked directly: nodes' registrations, and what becomes of runs.

An answer takes hundredths of a second, where a ``flwr`` command takes one to three. What is more than one
question, to start a run and to follow its log, is left to the commands
(:mod:`fedpriv.deployment.flower_cli`). ``server`` is the server's party or an operator's, as there.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from fedpriv.deployment import flower_cli, keys
from fedpriv.deployment.flower_cli import FlowerError
from fedpriv.deployment.folders import Party

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

FLWR = "1.41"  # whose client is used here; tests/deployment/test_control_api.py holds it

_Answer = TypeVar("_Answer")
_TIMEOUT = 60.0  # seconds for one answer


@contextmanager
def _client(server: Party) -> Iterator[ControlHttpClient]:
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    address, roots = flower_cli.control_address(server)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_verify_locations(cafile=str(roots))
    if server.is_operator:
        tls.load_cert_chain(server.path("certificate"), server.path("certificate-key"))
    client = ControlHttpClient(
        f"https://{address}",
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        verify=tls,
        timeout=_TIMEOUT,
    )
    try:
        yield client
    finally:
        client.close()


def _asked(server: Party, what: str, ask: Callable[[ControlHttpClient], _Answer]) -> _Answer:
    """The answer. Raises FlowerError, with Flower's reason, if there is none; ``what`` names the question."""
    try:
        with _client(server) as client:
            return ask(client)
    except httpx.HTTPStatusError as error:
        reason = _reason(error.response)
    except (httpx.HTTPError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
    raise flower_cli.refused(server, what, reason)


def _reason(answer: httpx.Response) -> str:
    """What Flower says of a question that it refuses."""
    from flwr.supercore.error import FlowerError as Refusal

    said = Refusal.from_json(answer.text)
    if said is None:
        return answer.text or f"HTTP {answer.status_code}"
    return " ".join(filter(None, [said.message, said.public_details]))


def register(server: Party, public_key: Path) -> int:
    """Registers a node's public key and returns Flower's id of the node. Raises KeyFileError, FlowerError."""
    from flwr.proto.control_pb2 import RegisterNodeRequest

    key = keys.node_public_pem(public_key)
    answer = _asked(
        server, "registering a node", lambda api: api.RegisterNode(RegisterNodeRequest(public_key=key))
    )
    if not answer.node_id:
        raise FlowerError(f"Flower registered no node for {public_key}")
    return int(answer.node_id)


def unregister(server: Party, node: int) -> None:
    """Ends a registration: the node's key opens nothing from now on. Raises FlowerError."""
    from flwr.proto.control_pb2 import UnregisterNodeRequest

    _asked(
        server, "unregistering a node", lambda api: api.UnregisterNode(UnregisterNodeRequest(node_id=node))
    )


def nodes(server: Party) -> dict[int, str]:
    """{Flower's node id: its status} of the nodes that are registered. Raises FlowerError."""
    from flwr.proto.control_pb2 import ListNodesRequest

    answer = _asked(server, "listing the nodes", lambda api: api.ListNodes(ListNodesRequest()))
    found = sorted(answer.nodes_info, key=lambda node: str(node.registered_at))
    return {int(node.node_id): str(node.status) for node in found if node.status != "unregistered"}


def runs(server: Party, run: int | None = None) -> list[dict[str, Any]]:
    """Flower's records of the runs, or of one run, the newest first: {"run-id": ..., "status": ...,
    "status-details": ...}. Raises FlowerError."""
    from flwr.proto.control_pb2 import ListRunsRequest

    answer = _asked(server, "listing the runs", lambda api: api.ListRuns(ListRunsRequest(run_id=run)))
    found = sorted(answer.run_dict.values(), key=lambda one: str(one.pending_at), reverse=True)
    return [
        {
            "run-id": int(one.run_id),
            "status": ":".join(filter(None, [one.status.status, one.status.sub_status])),
            "status-details": str(one.status.details),
        }
        for one in found
    ]


def stop_run(server: Party, run: int) -> None:
    """Asks Flower to end a run. Raises FlowerError."""
    from flwr.proto.control_pb2 import StopRunRequest

    answer = _asked(server, f"stopping run {run}", lambda api: api.StopRun(StopRunRequest(run_id=run)))
    if not answer.success:
        raise FlowerError(f"Flower could not stop run {run}")
