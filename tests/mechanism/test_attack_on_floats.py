"""What the digits of released floats tell: everything under fast noise, and nothing under exact noise.

:mod:`helpers.float_attack` is the attack. Its adversary sees the noisy answers or, under local noise, the
message of the target. Models follow from the answers, so that it sees more than who has the models alone. For
updates that can be inverted, the attack is made on the model alone, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

import pytest
import torch
from helpers.float_attack import DIMENSION, Attacked, Release, recorded, right_guesses
from helpers.small import small
from helpers.toys import CountingGate
from scipy import stats

from fedpriv.accounting.events import Event
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated import loop
from fedpriv.node import silo
from fedpriv.node.factory import make_worker
from fedpriv.node.silo import make_silo_worker
from fedpriv.optimizers.registry import METHODS
from fedpriv.rng import Key

TRIALS, FLAKE = 30, 1e-6

PUBLIC = {"public_examples": 20}
NEEDS: dict[str, dict[str, object]] = dict.fromkeys(("adadps", "noisy-adagrad", "pda-dpmd"), PUBLIC)

# How each optimizer's first model is attacked. Every optimizer's answers are attacked, too.
LINEAR: dict[str, object] = {}  # a step is a public multiple of the answer, of 4 for most
# The default, about 1e-8, leaves little more of an answer in float32 parameters than its sign.
DIVIDED: dict[str, object] = {"adam_epsilon": 1.0}
NOT_INVERTED = None  # a step follows from two answers, or from all entries of one
MODELS: dict[str, dict[str, object] | None] = {
    "dp-sgd": LINEAR,
    "dp-adam": DIVIDED,
    "dp-rmsprop": DIVIDED,
    "dp-adagrad": DIVIDED,
    "dp-yogi": DIVIDED,
    "dynamic-dp-sgd": LINEAR,
    "dynamic-dp-adam": DIVIDED,
    "dynamic-dp-rmsprop": DIVIDED,
    "dynamic-dp-adagrad": DIVIDED,
    "dynamic-dp-yogi": DIVIDED,
    "adaclip": LINEAR,
    "dynamic-adaclip": LINEAR,
    "adadp": NOT_INVERTED,
    "adp-sgd": LINEAR,
    "adaptive-adp-sgd": NOT_INVERTED,
    "dp2-rmsprop": LINEAR,
    "dp2-adagrad": LINEAR,
    "dp2-yogi": LINEAR,
    "dp2-adam": LINEAR,
    "dp-srm": LINEAR,
    "adadps": LINEAR,
    "pda-dpmd": LINEAR,
    "noisy-adagrad": NOT_INVERTED,
    "private-spiderboost": LINEAR,
    "dp-gd": LINEAR,
    "rrpsgd": LINEAR,
}

# Who the units are, and who adds noise. The target is in the first silo where units are examples.
SILOS: dict[str, object] = {"unit": "example", "clients": 2, "examples_per_client": 50}
PLACES: dict[str, dict[str, object]] = {
    "simulate": {"clients": 100},
    "train": {"unit": "example", "clients": 1, "examples_per_client": 100},  # as `fedpriv train` runs it
    "distributed": {"clients": 100, "placement": "distributed"},
    "local": {"clients": 100, "placement": "local"},
    "local-silos": {**SILOS, "placement": "local"},
    "client-level": {**SILOS, "level": "client"},
}
# In the default run. Gradients on public examples take longer, and dynamic methods begin as the plain ones.
USUALLY = [name for name in MODELS if name not in NEEDS and not name.startswith("dynamic-")]
# Queries that come after an optimizer's first one. AdaCliP's are left out: with an offset, other units add to
# the target's coordinates, too.
TWO: dict[str, object] = {"rounds": 2}
PHASES: dict[str, object] = {**TWO, "dp2_sgd_steps": 1, "dp2_adaptive_steps": 1}
LATER: dict[str, dict[str, object]] = {
    "dp-sgd": {**TWO, "adaptive_quantile": 0.5},
    "dp2-rmsprop": PHASES,
    "dp2-adagrad": {**TWO, "dp2_sgd_steps": 2, "dp2_variant": "extra-query"},
    "dp2-adam": PHASES,
    "dp-srm": TWO,
    "private-spiderboost": TWO,
}


def test_every_optimizer_is_attacked() -> None:
    assert set(MODELS) == set(METHODS)


def attacked(name: str, place: str, **changes: object) -> Config:
    """A run of one step in which everyone takes part; with step size 4 a model can be divided exactly."""
    steps = "silo_steps" if place == "client-level" else "rounds"
    settings: dict[str, Any] = {"rounds": 1, "silo_steps": 1, steps: 2 if name == "adadp" else 1}
    settings |= {"optimizer": name, "learning_rate": 4.0, "epsilon": 0.16, "delta": 1e-3, "evaluate_every": 1}
    settings |= {"dataset": "infinite-digits", "sampler": "everyone", "sampling_rate": 1.0, **PLACES[place]}
    return small(**{**settings, **(MODELS[name] or {}), **NEEDS.get(name, {}), **changes})


def guesses(name: str, place: str) -> list[Any]:
    """By the answers or messages, and by the model where that can be inverted and is what is seen."""
    seen = [Attacked.by_answers]
    return seen if MODELS[name] is None or place.startswith("local") else [*seen, Attacked.by_model]


def attacks(usual_optimizers: Container[str]) -> Iterator[Any]:
    """All cases; in the default run DP-SGD at every place, and the usual optimizers in a simulation.

    Slow runs have every optimizer in a simulation, and the default one at every place.
    """
    for name in METHODS:
        for place in PLACES:
            if (name, place) == ("rrpsgd", "client-level"):
                continue  # refused: its rounds are the run's
            usual = name == "dp-sgd" or (place == "simulate" and name in usual_optimizers)
            once = place == "simulate" or name == Config().optimizer
            slow = [pytest.mark.slow, *([] if once else [pytest.mark.exhaustive])]
            yield pytest.param(name, place, marks=() if usual else slow, id=f"{name}-{place}")


def most(allowed: float) -> float:
    """The right guesses that only one of a million sound runs exceeds."""
    assert allowed < 0.55
    return float(stats.binom.isf(FLAKE, TRIALS, allowed))


@pytest.mark.parametrize(("name", "place"), [*attacks(USUALLY)])
def test_digits_of_the_default_noise_tell_no_more_than_the_noise_allows(name: str, place: str) -> None:
    """Flakes once in a million runs."""
    right, allowed = right_guesses(attacked(name, place), TRIALS, guesses(name, place))
    assert max(right) <= most(allowed)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "dp-srm" else pytest.mark.slow) for name in LATER]
)
def test_digits_of_later_answers_tell_no_more_than_the_noise_allows(name: str) -> None:
    """Flakes once in a million runs."""
    config = attacked(name, "simulate", **LATER[name])
    [right], allowed = right_guesses(config, TRIALS, [Attacked.by_answers])
    assert right <= most(allowed)
    [fast], _ = right_guesses(config.changed(noise_draws="fast"), TRIALS, [Attacked.by_answers])
    assert fast > most(allowed)


@pytest.mark.parametrize(("name", "place"), [*attacks(("dp-adam", "adadp"))])
@pytest.mark.exhaustive
@pytest.mark.slow
def test_digits_of_fast_noise_tell_everything(name: str, place: str) -> None:
    """So that the test above can fail."""
    config = attacked(name, place, noise_draws="fast")
    right, allowed = right_guesses(config, TRIALS, guesses(name, place))
    assert min(right) > most(allowed)


# Every optimizer at every level and placement: answers on the grid, and with them all that follows from them.
PLACEMENTS = ("central", "local", "distributed")
LEVELS: dict[str, dict[str, object]] = {
    "aggregation": {"clients": 40},
    "client": {
        "level": "client",
        "unit": "example",
        "clients": 2,
        "examples_per_client": 40,
        "silo_steps": 2,
    },
}
USUAL = ("dp-sgd", "dp2-rmsprop", "adadp", "dp-srm")


def cases() -> Iterator[Any]:
    for name in METHODS:
        for level, placement in (*(("aggregation", p) for p in PLACEMENTS), ("client", "central")):
            if (name, level) == ("rrpsgd", "client"):
                continue  # refused: its rounds are the run's
            usual = name in USUAL and (placement == "central" or name == "dp-sgd")
            marks = () if usual else pytest.mark.slow
            yield pytest.param(name, level, placement, marks=marks, id=f"{name}-{level}-{placement}")


class SiloGate(CountingGate):
    """Counts the charges of silos."""

    def charge(self, events: Sequence[Event], silos: Sequence[int] = ()) -> None:
        super().charge(events)


def answers_of(config: Config) -> list[Release]:
    """The released answers of a run from Python, without a folder."""
    plan, key = make_plan(config), Key.fresh()
    table, zeros = plan.config.table(), torch.zeros(DIMENSION)
    with recorded(plan) as (releases, _):
        if plan.by_silo:
            silo.run(plan, zeros, make_silo_worker(table), SiloGate())
        else:
            loop.run(plan.mechanism, zeros, make_worker(table), CountingGate(), key, plan.cohorts(key))
    return releases


def off_grid(found: Sequence[Release]) -> list[int]:
    """How many floats of each release no multiples of the public steps give."""
    return [sum(int((~seen.possible(seen.values)).sum()) for seen in release.seen) for release in found]


def configured(name: str, level: str, placement: str, **changes: object) -> Config:
    settings: dict[str, Any] = {"dataset": "digits", "optimizer": name, "placement": placement, "rounds": 4}
    settings |= {"sampling_rate": 0.5, "epsilon": 8.0, "delta": 1e-3, **LEVELS[level], **NEEDS.get(name, {})}
    if placement != "central":
        settings["sampler"] = "fixed-size"
    if name == "dp-gd":
        settings |= {"sampler": "everyone", "sampling_rate": 1.0}
    return small(learning_rate=0, **{**settings, **changes})


@pytest.mark.parametrize(("name", "level", "placement"), [*cases()])
def test_answers_to_every_optimizer_are_whole_steps(name: str, level: str, placement: str) -> None:
    found = off_grid(answers_of(configured(name, level, placement)))
    assert found
    assert sum(found) == 0


def test_fast_answers_are_off_the_grid() -> None:
    releases = answers_of(configured("dp-sgd", "aggregation", "central", noise_draws="fast"))
    assert all(off_grid([release.as_exact() for release in releases]))
