"""Files of a node and its server, and heads of requests, of any content."""

from __future__ import annotations

import json
import shutil
import tempfile
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.fuzzing import Reader, amounts, for_all, mutations, outcome, run_hostile
from helpers.owner_policy import POLICY
from helpers.signed_heads import signed

from fedpriv.accounting.head import Head, HeadFile, read_head
from fedpriv.deployment import keys, node_proof, operators
from fedpriv.flower.enrolment import HEADS, Enrolment, read_enrolment
from fedpriv.node.contact import read_contact
from fedpriv.node.journal import read_journal
from fedpriv.node.ledger_file import read_answered
from fedpriv.node.policy_file import read_policy
from fedpriv.node.silo_state import SiloState, SiloStateFile

RUN = 7
ENTRIES = {"0": {"key": "ab" * 32, "node-id": 101}, "1": {"key": "cd" * 32, "node-id": 2**63}}
KEPT = {"0": {"length": 3, "chain": "ab" * 32}, "1": {"length": 0, "chain": ""}}
LINES = b'{"time": "2026-01-01T00:00:00Z", "event": "answered", "run": 3}\n' * 3


PATHS = """root-certificates = "ca.crt"
private-key = "~/node.key"
ledger-anchor = "/a/head"
code-folder = "code"
"""
POLICY_WITH_PATHS = POLICY.replace("insecure = true\n", PATHS).encode()


def read_state(path: Path) -> object:
    """The state of a silo, from the place where it belongs."""
    state = SiloStateFile(path.with_name("node"), RUN)
    state.path.parent.mkdir(exist_ok=True)
    shutil.copy(path, state.path)
    return state.read()


def read_kept(path: Path) -> object:
    return Enrolment(path.with_name("enrolment.json")).heads()


def read_operators(path: Path) -> object:
    server: Any = SimpleNamespace(operators=path)
    return operators.read(server)


def head() -> bytes:
    """The file with a ledger's head: two slots."""
    with tempfile.TemporaryDirectory() as folder:
        HeadFile.create(Path(folder, "a"), Head(3, "ab" * 32)).close()
        return Path(folder, "a").read_bytes()


def state() -> bytes:
    """The file with a silo's state."""
    with tempfile.TemporaryDirectory() as folder:
        file = SiloStateFile(Path(folder, "node"), RUN)
        file.write(SiloState(1, {"momentum": torch.ones(3)}, Head(1, "ab" * 32)))
        return file.path.read_bytes()


NODE_KEY, NODE_LINE = keys.make_node_key()
CERTIFICATE = keys.pem(keys.make_authority("a").certificate)
OPERATORS = json.dumps({"a": CERTIFICATE.decode()}).encode()

READERS = (
    Reader("ledger's head", "ledger.jsonl.head", read_head, (head(),)),
    Reader("answers of a node", "node.answered", read_answered, (b'{"7": 3, "8": 0}',), times=200),
    Reader("state of a silo", "state", read_state, (state(),), names=("node.silo",)),
    Reader("journal", "node.journal", read_journal, (LINES,), times=500),
    Reader("contact", "contact", read_contact, (b'{"heard": 1.5, "asked": null}',), times=200),
    Reader("enrolment", "enrolment.json", read_enrolment, (json.dumps(ENTRIES).encode(),), times=200),
    Reader("ledgers of an enrolment", HEADS, read_kept, (json.dumps(KEPT).encode(),), times=200),
    Reader("operators", "operators.json", read_operators, (OPERATORS,)),
    Reader("policy", "policy.toml", read_policy, (POLICY.encode(), POLICY_WITH_PATHS), times=2000),
    Reader("private key", "node.key", keys.read_node_private, (NODE_KEY,)),
    Reader("public key", "node.pub", keys.read_node_public, (NODE_LINE,)),
    Reader("certificates", "ca.crt", keys.read_certificates, (CERTIFICATE,)),
)


@amounts
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_hostile_file_of_a_node_or_server_is_refused_in_a_sentence(
    reader: Reader, tmp_path: Path, examples: int
) -> None:
    run_hostile(reader, examples, tmp_path)


def test_a_very_long_line_of_a_key_is_not_repeated_whole(tmp_path: Path) -> None:
    """The library's error says the kind of a key that it does not know, of any length."""
    path = tmp_path / "node.pub"
    path.write_bytes(b"9" * 20_000 + b" " + NODE_LINE.split()[1])
    with pytest.raises(keys.KeyFileError, match=r"node\.pub is no public key in OpenSSH's format") as refusal:
        keys.read_node_public(path)
    assert len(str(refusal.value)) < 1000


@amounts
@pytest.mark.parametrize("name", [node_proof.KEY, node_proof.TIME, node_proof.SIGNATURE])
def test_a_hostile_head_of_a_request_proves_nothing(name: str, tmp_path: Path, examples: int) -> None:
    """A stranger writes these heads, so an error is not even a sentence: it is no proof."""
    (tmp_path / "node.key").write_bytes(NODE_KEY)
    enrolment = tmp_path / "enrolment.json"
    enrolment.write_text(json.dumps({"0": {"key": keys.fingerprint(NODE_LINE), "node-id": 101}}))
    fields = signed(tmp_path / "node.key")

    def read(value: bytes) -> None:
        head = Message()
        for field, own in {**fields, name: value.decode("latin-1")}.items():
            head[field] = own
        proofs: list[bool] = []
        outcome(lambda: proofs.append(node_proof.proven(enrolment, head)), (), "heads of requests", 1 << 20)
        assert proofs == [value.decode("latin-1") == fields[name]]

    read(fields[name].encode())
    for_all(examples, mutations((fields[name].encode(),)), read, (fields[name].encode(),))
