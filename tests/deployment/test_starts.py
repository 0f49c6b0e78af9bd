"""Flower's starts of processes have time. These tests hold the names of the Flower that they fit."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import pytest
from flwr.supercore.corestate import in_memory_corestate, sql_corestate
from flwr.supercore.object_store.object_store_factory import ObjectStoreFactory

from fedpriv import ArgumentError
from fedpriv.deployment import starts

MODULES = [(in_memory_corestate, "InMemoryCoreState"), (sql_corestate, "SqlCoreState")]


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in MODULES:
        kind = getattr(module, name)
        monkeypatch.setattr(kind, "claim_task", kind.claim_task)


def test_flower_is_the_version_whose_names_are_used() -> None:
    assert version("flwr").startswith(f"{starts.FLWR}."), "look at fedpriv/deployment/starts.py"


@pytest.mark.parametrize(("module", "name"), MODULES, ids=["memory", "sql"])
def test_a_start_has_time_and_nothing_else_of_flower_changes(module: Any, name: str) -> None:
    kind = getattr(module, name)
    before = kind.claim_task
    assert module.HEARTBEAT_DEFAULT_INTERVAL == 30
    assert before.__globals__["HEARTBEAT_DEFAULT_INTERVAL"] == 30
    assert "HEARTBEAT_DEFAULT_INTERVAL" in before.__code__.co_names
    starts.patient()
    after = kind.claim_task
    assert after is not before
    assert after.__code__ is before.__code__
    assert after.__globals__["HEARTBEAT_DEFAULT_INTERVAL"] == starts.START_TIMEOUT
    assert module.HEARTBEAT_DEFAULT_INTERVAL == 30
    assert kind.activate_task.__globals__["HEARTBEAT_DEFAULT_INTERVAL"] == 30


def test_a_claimed_task_lives_as_long_as_a_start_may_take() -> None:
    starts.patient()
    abstract = dict.fromkeys(in_memory_corestate.InMemoryCoreState.__abstractmethods__)
    state = type("State", (in_memory_corestate.InMemoryCoreState,), abstract)(ObjectStoreFactory().store())
    task = state.create_task("flwr-serverapp", 7)
    assert task is not None
    claimed = in_memory_corestate.now()
    token = state.claim_task(task)
    assert token
    left = state.task_token_store[task].active_until - claimed
    assert timedelta(seconds=299) < left < timedelta(seconds=310)
    assert state.claim_task(task) is None


def test_a_command_that_is_not_flowers_is_refused() -> None:
    with pytest.raises(ArgumentError, match="command is 'ls'; it must be a command of Flower"):
        starts.run("ls", [])


def test_the_command_line_passes_flowers_own_arguments_on() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "fedpriv", "deploy", "superlink", "--help"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "--enable-supernode-auth" in result.stdout
