"""A request is proven by what Flower's own node writes into its head, and by nothing less."""

from __future__ import annotations

import datetime
import inspect
import json
from collections.abc import Mapping
from email.message import Message
from importlib.metadata import version
from pathlib import Path

import pytest
from flwr.common import constant
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.superlink.routers.fleet import node_auth
from helpers.signed_heads import signed

from fedpriv.deployment import keys, node_proof
from fedpriv.deployment.node_proof import AHEAD, KEY, OLDEST, SIGNATURE, TIME, proven


def head(fields: Mapping[str, str]) -> Message:
    made = Message()
    for name, value in fields.items():
        made[name] = value
    return made


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A node's private key, which is enrolled in ``enrolment.json`` beside it."""
    private, public = keys.make_node_key()
    (tmp_path / "node.key").write_bytes(private)
    record = {"0": {"key": keys.fingerprint(public), "node-id": 101}}
    (tmp_path / "enrolment.json").write_text(json.dumps(record))
    return tmp_path / "node.key"


def test_flower_is_the_version_whose_heads_are_checked() -> None:
    assert version("flwr").startswith(f"{node_proof.FLWR}."), "look at fedpriv/deployment/node_proof.py"
    names = FLEET_HTTP_PUBLIC_KEY_HEADER, constant.TIMESTAMP_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    assert names == (KEY, TIME, SIGNATURE)
    ahead, oldest = constant.SYSTEM_TIME_TOLERANCE, constant.TIMESTAMP_TOLERANCE
    assert (ahead, oldest + ahead) == (AHEAD, OLDEST)
    assert 'timestamp.encode("ascii")' in inspect.getsource(node_auth.authenticate_node)


def test_an_enrolled_nodes_head_is_a_proof(key: Path) -> None:
    enrolment = key.with_name("enrolment.json")
    assert proven(enrolment, head(signed(key)))
    enrolment.write_text("{}")  # revoked
    assert not proven(enrolment, head(signed(key)))
    enrolment.unlink()
    assert not proven(enrolment, head(signed(key)))


def test_a_head_of_somebody_else_is_none(key: Path, tmp_path: Path) -> None:
    enrolment, own = key.with_name("enrolment.json"), signed(key)
    (tmp_path / "other.key").write_bytes(keys.make_node_key()[0])
    other = signed(tmp_path / "other.key")
    later = {TIME: (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)).isoformat()}
    wrong: list[Mapping[str, str]] = [
        other,  # another key
        {**other, KEY: own[KEY]},  # the node's key without its signature
        {**own, **later},  # another time than was signed
        {**own, KEY: "x"},
        {**own, KEY: "eA=="},
        {**own, SIGNATURE: "é"},
        {**own, TIME: "now"},
        {**own, TIME: "2026-01-01"},  # without a zone
        *({name: value for name, value in own.items() if name != left_out} for left_out in own),
        {},
    ]
    for fields in wrong:
        assert not proven(enrolment, head(fields)), fields
    assert proven(enrolment, head(own))


@pytest.mark.parametrize(("age", "taken"), [(OLDEST - 5, True), (OLDEST + 5, False), (-AHEAD - 5, False)])
def test_a_head_of_another_time_is_none(key: Path, age: float, taken: bool) -> None:
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
    assert proven(key.with_name("enrolment.json"), head(signed(key, then))) == taken
