"""Hints for a mistyped setting, or one with another name elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from fedpriv._internal import hints
from fedpriv._internal.validation import ArgumentError
from fedpriv.config.builders import choose_device
from fedpriv.config.reading import read_assignment
from fedpriv.config.schema import Config

MISTAKES: list[Any] = [
    ("clients=1e30", "clients is 1e+30; it must be at most 1,000,000,000,000"),
    ("clients=many", "clients is 'many'; it must be a whole number"),
    ("clients=0", "clients is 0; it must be at least 1"),
    ("clients=250k", "(write 250000)"),
    ("clients=100,000", "(write 100000)"),
    ("rounds=10.5", "rounds is 10.5; it must be a whole number"),
    ("optimizer=DP-SGD", "optimizer is 'DP-SGD'; did you mean 'dp-sgd'?"),
    ("optimizer=dp_sgd", "did you mean 'dp-sgd'?"),
    ("optimizer=sgd", "did you mean 'dp-sgd'?"),
    ("optimizer=adam", "did you mean 'dp-adam'?"),
    ("optimizer=fedavg", "FedAvg is work=local-steps with optimizer=dp-sgd"),
    ("epsilon=-1", "epsilon is -1; it must be greater than 0 (a smaller epsilon is more private;"),
    ("epsilon=1,5", "epsilon is '1,5'; it must be a number (write 1.5)"),
    ("eps=1", "did you mean 'epsilon'?"),
    ("delta=1", "delta is 1; it must be less than 1"),
    ("placement=center", "(did you mean 'central'?)"),
    ("placement=server", "(did you mean 'central'?)"),
    ("placement=Central", "(did you mean 'central'?)"),
    ("unit=user", "(did you mean 'client'?)"),
    ("accounting=PLD", "(did you mean 'pld'?)"),
    ("accounting=moments", "(did you mean 'rdp'?)"),
    ("partition=non-iid", "(did you mean 'dirichlet'?)"),
    ("engine=Ray", "(did you mean 'ray'?)"),
    ("lr=0.1", "did you mean 'learning-rate'?"),
    ("batch-size=32", "the expected cohort is sampling-rate times clients"),
    ("epochs=3", "the length of a run is rounds"),
    ("noise_multiplier=1", "the noise follows from epsilon, delta, rounds and sampling-rate"),
    ("max-grad-norm=1", "did you mean 'clip-norm'?"),
    ("sampling-rate=5%", "(write 0.05)"),
    ("sampling-rate=100", "sampling-rate is 100; it must be at most 1 (it is the expected part of the units"),
    ("zebra=1", "see `fedpriv simulate --help`"),
]


@pytest.mark.parametrize(("assignment", "message"), MISTAKES)
def test_a_mistake_gets_the_hint_that_a_person_would_give(assignment: str, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Config.parse(dict([read_assignment(assignment)]))
    assert message in str(caught.value)


def test_hint_tables_name_existing_settings_and_values() -> None:
    assert set(hints._KEYS.values()) <= set(Config.keys())
    assert not (set(hints._KEYS) | set(hints._EXPLAINED)) & set(Config.keys())
    for key, values in hints._VALUES.items():
        for value in values.values():
            Config.parse({key: value})


def test_a_gpu_is_called_cuda() -> None:
    with pytest.raises(ArgumentError, match=r"device is 'gpu'.*did you mean 'cuda'"):
        choose_device("gpu")
