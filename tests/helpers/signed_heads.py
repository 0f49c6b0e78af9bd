"""The head of a node's request, as Flower's own node signs it."""

from __future__ import annotations

import datetime
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode import node_auth_http_interceptor as flowers


def signed(private_key: Path, when: datetime.datetime | None = None) -> dict[str, str]:
    """The headers with a node's key and its signature of the time now, or of ``when``."""
    key = serialization.load_ssh_private_key(private_key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    request = httpx.Request("POST", "http://server")
    context = ProtobufRequestContext("/flwr.proto.Fleet/PullMessages", PullMessagesRequest(), request)
    time = when or datetime.datetime.now(datetime.UTC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flowers, "now", lambda: time)
        flowers.NodeAuthHttpInterceptor(key, key.public_key()).intercept(
            context, lambda _: httpx.Response(200)
        )
    return {name: value for name, value in request.headers.items() if name.startswith("flwr-")}
