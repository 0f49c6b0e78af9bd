"""A policy file: what is wrong with one in one line, and which runs one allows."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.owner_policy import write_policy

from fedpriv._internal.validation import ArgumentError
from fedpriv.node.policy import SETTINGS, RefusedError
from fedpriv.node.policy_file import read_policy

RUN: dict[str, Any] = {
    "nodes-own-data": True,
    "dataset": "infinite-digits",
    "model": "logistic",
    "optimizer": "dp-sgd",
    "unit": "example",
    "clients": 5,
    "examples-per-client": 40,
    "placement": "local",
    "sampler": "everyone",
    "sampling-rate": 1.0,
    "rounds": 3,
    "epsilon": 8.0,
}


def test_a_policy_is_the_configuration_of_a_node(tmp_path: Path) -> None:
    policy = read_policy(write_policy(tmp_path))
    assert policy.node_config == {
        "partition-id": 1,
        "num-partitions": 5,
        "data-file": str(tmp_path / "data/silo.npz"),
        "ledger-anchor": str(tmp_path / "policy.toml.ledger-head"),
        "epsilon-limit": 20.0,
        "delta-limit": 1e-3,
        "min-noise-multiplier": 0.1,
        "max-clip-norm": 1.0,
        "accept-central": True,
        "min-parties": 0,
        "colluding-peers": 1,
    }
    assert set(policy.node_config) <= set(SETTINGS)
    assert policy.ledger == tmp_path / "data/silo.npz.ledger.jsonl"


def test_the_anchor_is_beside_the_key(tmp_path: Path) -> None:
    keyed = ("insecure = true", 'root-certificates = "ca.crt"\nprivate-key = "keys/node"')
    assert read_policy(write_policy(tmp_path, keyed)).anchor == tmp_path / "keys/node.ledger-head"


def test_a_home_that_does_not_exist_stays_as_it_is_written(tmp_path: Path) -> None:
    policy = read_policy(write_policy(tmp_path, ("data/silo.npz", "~nobody-here/silo.npz")))
    assert policy.node_config["data-file"] == str(tmp_path / "~nobody-here/silo.npz")


@pytest.mark.parametrize("key", ["run-epsilon", "epsilon-limit", "delta-limit", "max-clip-norm", "model"])
def test_no_limit_has_a_default(tmp_path: Path, key: str) -> None:
    path = write_policy(tmp_path)
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith(key)))
    with pytest.raises(ArgumentError, match=rf"policy.toml: \[\w+\] has no {key}, which has no default"):
        read_policy(path)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("epsilon-limit = 20.0", "epsilon-limit = inf", "epsilon-limit is inf; it must be finite"),
        ("run-epsilon = 8.0", "run-epsilon = 0", "run-epsilon is 0; it must be greater than 0"),
        ("superlink", "superlnk", "unknown key 'superlnk'; did you mean 'superlink'?"),
        ("[allow]", "[allowed]", "a table of the policy is 'allowed'; it must be one of node, limits"),
        ('"logistic"', '"logstic"', "model is 'logstic'; did you mean 'logistic'?"),
        ('"logistic"', '"mine:net"', r"model is 'mine:net'; it must be listed in \[code\]"),
        ('"example"', '["example", "client"]', "it must be one value"),
        ('["local", "central"]', '["none"]', "a run without noise protects nobody"),
        ('["local", "central"]', "[]", "placement is .*; it must allow at least one value"),
        ("[allow]", '[allow]\nrounds = ["3"]', "'rounds', which is no text setting"),
        ("insecure = true", "", "must have root-certificates"),
        ("partition-id = 1", "partition-id = 5", "it must be less than num-partitions"),
        ("insecure = true", 'insecure = true\nledger-anchor = "data/x"', "lie in another folder"),
        ("[node]", "[node", "is no TOML file"),
    ],
)
def test_a_wrong_policy_is_refused_in_one_line(tmp_path: Path, before: str, after: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said) as error:
        read_policy(write_policy(tmp_path, (before, after)))
    assert str(error.value).startswith(str(tmp_path / "policy.toml"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "cnn"}, "the run's model is cnn; this node's policy allows logistic"),
        ({"dataset": "mnist"}, "the run's dataset is mnist"),
        ({"optimizer": "dp-adam"}, "the run's optimizer is dp-adam"),
        ({"placement": "distributed"}, "the run's placement is distributed"),
        ({"unit": "client"}, "the run's unit is client"),
        ({"epsilon": 8.1}, "the run's epsilon is 8.1; this node's policy allows run-epsilon 8 at most"),
        ({"delta": 0.01}, "the run's delta is 0.01; this node's policy allows delta-limit 0.001 at most"),
        ({"clip_norm": 2.0}, "the run's clip-norm is 2; this node's policy allows max-clip-norm 1 at most"),
        ({"rounds": 200_000}, "the run's number of releases is 200000"),
        ({"seed": 3}, "the run has a seed"),
        ({"nodes-own-data": False}, "this node owns its data"),
        ({"model": "os:system"}, "the run's model is code, os:system"),
        ({"relative-noise-file": "/etc/passwd"}, "reads no file that a run names"),
    ],
)
def test_a_run_that_the_owner_has_not_allowed(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    policy = read_policy(write_policy(tmp_path))
    policy.check(RUN)
    with pytest.raises(RefusedError, match=said) as error:
        policy.check({**RUN, **changes})
    assert "\n" not in str(error.value)


def test_the_hash_of_the_app_is_compared_where_the_policy_lists_hashes(tmp_path: Path) -> None:
    policy = read_policy(write_policy(tmp_path, ("[allow]", f'[allow]\napp-hashes = ["{"a" * 64}"]')))
    policy.check(RUN, "a" * 64)
    with pytest.raises(RefusedError, match=f"has the hash {'b' * 64}, which app-hashes does not list"):
        policy.check(RUN, "b" * 64)


def test_the_owners_code_is_the_file_with_the_policys_hash(tmp_path: Path) -> None:
    code = tmp_path / "code" / "an_owners_net.py"
    code.parent.mkdir()
    code.write_text("raise RuntimeError('to check code is not to run it')\n")
    digest = hashlib.sha256(code.read_bytes()).hexdigest()
    changes = (
        ("insecure = true", 'insecure = true\ncode-folder = "code"'),
        ('["logistic"]', '["logistic", "an_owners_net:net"]'),
        ("[allow]", f'[code]\n"an_owners_net:net" = "{digest}"\n\n[allow]'),
    )
    policy = read_policy(write_policy(tmp_path, *changes))
    assert policy.node_config["accept-code"] == "an_owners_net:net"
    policy.check({**RUN, "model": "an_owners_net:net"})
    assert "an_owners_net" not in sys.modules
    code.write_text("import os\n")
    with pytest.raises(RefusedError, match="is not the file whose hash the policy has"):
        policy.check({**RUN, "model": "an_owners_net:net"})
    with pytest.raises(ArgumentError, match="is not the file whose hash the policy has"):
        read_policy(tmp_path / "policy.toml")
