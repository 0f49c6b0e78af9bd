"""Flower's starts of processes have time. These tests hold the names of the Flower that they fit."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from datetime import timedelta
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.supercore.corestate import in_memory_corestate, sql_corestate
from flwr.supercore.object_store.object_store_factory import ObjectStoreFactory

from fedpriv import ArgumentError
from fedpriv._internal import descriptors
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


@pytest.mark.parametrize(("child", "ends"), [("kill -KILL $$", [1]), ("exit 3", [1])])
def test_a_superlink_ends_when_its_child_has_died(child: str, ends: list[int]) -> None:
    """In a process of its own, since the tests have children, too."""
    code = (
        "import subprocess, sys; from fedpriv.deployment.starts import end_with_child\n"
        f"process = subprocess.Popen(['sh', '-c', {child!r}])\n"
        "end_with_child(lambda code: print('ends with', code))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines()[-1] == f"ends with {ends[0]}", result.stderr


def test_a_child_that_was_asked_to_end_ends_no_superlink() -> None:
    code = (
        "import subprocess, threading; from fedpriv.deployment.starts import end_with_child\n"
        "process = subprocess.Popen(['sleep', '60']); process.terminate()\n"
        "thread = threading.Thread(target=end_with_child, daemon=True); thread.start(); thread.join(3)\n"
        "print(thread.is_alive(), process.wait())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.split() == ["True", "-15"], result.stderr


def test_a_superlink_may_have_as_many_connections_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = list[int]()
    entry = SimpleNamespace(module="os", attr="getpid")
    monkeypatch.setattr(starts, "entry_points", lambda **named: [entry])
    monkeypatch.setattr(starts, "quicken", lambda: None)
    monkeypatch.setattr(starts, "end_with_child", lambda: None)
    monkeypatch.setattr(os, "getpid", lambda: found.append(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    monkeypatch.setattr(sys, "argv", [])
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        starts.run("flower-superlink", [])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == [descriptors.allowed()]


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
