"""What the digits of released floats tell: everything under fast noise, and nothing under exact noise.

Where all other units add 0, a released float is the noise alone, or noise plus what the target adds. Fast
noise has gaps: some floats are no product of the public factors and a float32 number, so a float in a gap
shows that the target was there. Exact noise reaches the same floats with and without the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from helpers.small import small
from helpers.toys import CountingGate
from scipy import stats

from fedpriv import data
from fedpriv.accounting.events import Event
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.federated import loop
from fedpriv.federated.worker import Worker
from fedpriv.mechanism import release as release_module
from fedpriv.mechanism.grid import noise_step
from fedpriv.mechanism.query import NoisyAnswer, Query
from fedpriv.node import silo
from fedpriv.node.factory import make_worker
from fedpriv.node.silo import make_silo_worker
from fedpriv.optimizers.registry import METHODS
from fedpriv.rng import Key

DIMENSION = 7850  # of the softmax regression, on images of 28 x 28
UNITS, OWN = 100, 40  # the last OWN features are those of the target alone
TRIALS = 60
FLAKE = 1e-6


@dataclass(frozen=True)
class Images:
    """Units with one image (1, 28, 28) each."""

    x: torch.Tensor
    y: torch.Tensor

    def batch(self, client_ids: data.Indices, device: torch.device | str = "cpu") -> data.Batch:
        return data.Batch(self.x[client_ids], self.y[client_ids], torch.arange(len(client_ids)))


def images(with_target: bool) -> Images:
    """100 images; the first is the target's, or blank."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(UNITS, 784, generator=generator)
    x[1:, -OWN:] = 0.0
    if not with_target:
        x[0] = 0.0
    return Images(x.view(-1, 1, 28, 28), torch.arange(UNITS) % 10)


SIMULATE = {"clients": UNITS, "unit": "client"}
TRAIN = {"clients": 1, "unit": "example", "examples_per_client": UNITS}  # as `fedpriv train` runs it


def attacked(unit: dict[str, object], **changes: object) -> Config:
    """One release in which everyone takes part, whose model is a multiple of the answer."""
    settings: dict[str, Any] = {"optimizer": "dp-sgd", "learning_rate": 4.0, "epsilon": 0.16, "rounds": 1}
    settings |= {"sampler": "everyone", "sampling_rate": 1.0, "evaluate_every": 1, "delta": 1e-3}
    return small(dataset="infinite-digits", **{**settings, **unit, **changes})


def released(plan: Plan, worker: Worker) -> npt.NDArray[np.float32]:
    """The answer (d,), as the parameters after one step from 0 show it to everyone: step size 4 is exact."""
    zeros, key = torch.zeros(worker.task.dimension), Key.fresh()
    cohorts = plan.cohorts(key)
    state = loop.run(plan.mechanism, zeros, worker, CountingGate(), key, cohorts).state
    answer: npt.NDArray[np.float32] = (state.params / -4.0).numpy()
    return answer


def drawable(answer: npt.NDArray[np.float32], std: float) -> npt.NDArray[np.bool_]:
    """Whether float32 numbers times std, divided by the cohort, can give these floats."""
    draw = (answer.astype(np.float64) * UNITS / std).astype(np.float32)
    near = [np.nextafter(draw, np.float32(end)) for end in (-np.inf, np.inf)]
    each = [(std * z.astype(np.float64) / UNITS).astype(np.float32) == answer for z in (draw, *near)]
    found: npt.NDArray[np.bool_] = np.any(each, axis=0)
    return found


def on_grid(answer: npt.NDArray[np.float32], step: float, size: float) -> npt.NDArray[np.bool_]:
    """Whether whole multiples of a step, divided by the cohort's expected size, can give these floats."""
    whole = np.rint(answer.astype(np.float64) * size / step)
    each = [((whole + more) * step / size).astype(np.float32) == answer for more in (-1, 0, 1)]
    found: npt.NDArray[np.bool_] = np.any(each, axis=0)
    return found


def right_guesses(config: Config, trials: int) -> tuple[int, float]:
    """How often the attack on the digits is right, and the chance that the accounted noise allows."""
    plan = make_plan(config)
    worker = make_worker(plan.config.table())
    own = np.zeros((10, 784), bool)
    own[:, -OWN:] = True
    coordinates = np.flatnonzero(own)  # the layout has the weights first
    [block] = plan.mechanism.optimizer.query(plan.mechanism.optimizer.init(torch.zeros(DIMENSION))).blocks
    std = plan.mechanism.scale * block.sensitivity
    presence = np.random.default_rng(3).random(trials) < 0.5
    right = 0
    for present in presence:
        answer = released(plan, replace(worker, view=images(bool(present))))[coordinates]
        possible = (
            on_grid(answer, noise_step(block, std), UNITS) if config.exact_noise else drawable(answer, std)
        )
        right += (not possible.all()) == present
    # The target's vector and the blank image's are at most 2 S apart.
    return right, float(stats.norm.cdf(block.sensitivity / std))


@pytest.mark.parametrize("unit", [SIMULATE, TRAIN], ids=["simulate", "train"])
def test_digits_of_the_default_noise_tell_no_more_than_the_noise_allows(unit: dict[str, object]) -> None:
    """Flakes once in a million runs."""
    right, allowed = right_guesses(attacked(unit), TRIALS)
    assert allowed < 0.55
    assert right <= stats.binom.isf(FLAKE, TRIALS, allowed)


def test_digits_of_fast_noise_tell_everything() -> None:
    right, _ = right_guesses(attacked(SIMULATE, noise_draws="fast"), 20)
    assert right == 20


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
PUBLIC = {"public_examples": 20}
NEEDS: dict[str, dict[str, object]] = dict.fromkeys(("adadps", "noisy-adagrad", "pda-dpmd"), PUBLIC)
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


@dataclass(frozen=True)
class Recorded:
    """A release's answer, and what makes its grid."""

    answer: NoisyAnswer
    query: Query
    stds: tuple[float, ...]
    size: float

    def off_grid(self) -> int:
        """How many released floats no multiple of the public step gives."""
        blocks = zip(self.answer, self.query.blocks, self.stds, strict=True)
        steps = [(value.reshape(-1).numpy(), noise_step(block, std)) for value, block, std in blocks]
        return sum(int((~on_grid(value, step, self.size)).sum()) for value, step in steps)


def answers_of(config: Config, monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """The released answers of a run from Python, without a folder."""
    plan, found, release = make_plan(config), list[Recorded](), release_module.release

    def recorded(
        sums: Any, replies: int, query: Query, z: float, placement: Any, size: float, *rest: Any
    ) -> Any:
        answer = release(sums, replies, query, z, placement, size, *rest)
        owed = query.noise_stds(z)
        found.append(Recorded(answer, query, placement.party_stds(owed) or owed, size))
        return answer

    monkeypatch.setattr(release_module, "release", recorded)
    key = Key.fresh()
    if plan.by_silo:
        worker = make_silo_worker(plan.config.table())
        silo.run(plan, torch.zeros(DIMENSION), worker, SiloGate())
    else:
        loop.run(
            plan.mechanism,
            torch.zeros(DIMENSION),
            make_worker(plan.config.table()),
            CountingGate(),
            key,
            plan.cohorts(key),
        )
    return found


def configured(name: str, level: str, placement: str, **changes: object) -> Config:
    settings: dict[str, Any] = {"dataset": "digits", "optimizer": name, "placement": placement, "rounds": 4}
    settings |= {"sampling_rate": 0.5, "epsilon": 8.0, "delta": 1e-3, **LEVELS[level], **NEEDS.get(name, {})}
    if placement != "central":
        settings["sampler"] = "fixed-size"
    if name == "dp-gd":
        settings |= {"sampler": "everyone", "sampling_rate": 1.0}
    return small(learning_rate=0, **{**settings, **changes})


@pytest.mark.parametrize(("name", "level", "placement"), [*cases()])
def test_answers_to_every_optimizer_are_whole_steps(
    name: str, level: str, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answers_of(configured(name, level, placement), monkeypatch)
    assert found
    assert sum(one.off_grid() for one in found) == 0


def test_fast_answers_are_off_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answers_of(configured("dp-sgd", "aggregation", "central", noise_draws="fast"), monkeypatch)
    assert all(one.off_grid() for one in found)
