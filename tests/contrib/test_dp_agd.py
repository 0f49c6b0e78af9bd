"""DP-AGD against its algorithm in plain numpy, its charges, and the privacy of a noisy choice."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.problems import START, TASK, accuracy, examples, logistic
from scipy import stats
from scipy.integrate import quad

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Budget, Event, Filter, Ledger, epsilon
from fedpriv.accounting.ledger import read
from fedpriv.contrib.dp_agd import DpAgd, descend, objective
from fedpriv.mechanism.gaussian import Normals
from fedpriv.mechanism.release import CHOICE, SERVER, choose_least
from fedpriv.rng import Key
from fedpriv.tasks.task import Task

KEY = Key.from_seed(8)
SETTINGS = DpAgd(clip_norm=0.5, clip_loss=0.9, gradient_share=0.004, choice_share=0.01, refresh=3)


def budget_gate(total: float = 0.4, **changes: object) -> Filter:
    return Filter(Budget(total, 1e-5, "zcdp"), **changes)  # type: ignore[arg-type]


def algorithm(
    x: np.ndarray, y: np.ndarray, rho: float, s: DpAgd, factor: float
) -> tuple[np.ndarray, list[str]]:
    """Lee & Kifer 2018, algorithm 1, line by line; ``factor`` is the sensitivity over add/remove's."""
    w, index, log = np.zeros(12), 0, []
    rho_ng, rho_nmax, alpha_max = s.gradient_share * rho, s.choice_share * rho, s.largest_step
    taken: list[float] = []

    def noise() -> np.ndarray:
        nonlocal index
        index += 1
        return Normals(KEY, (SERVER, index - 1), [START]).take()[0].numpy()

    while True:
        gradients = logistic(w, x, y)[1]
        norms = np.linalg.norm(gradients, axis=1)
        g = (gradients / np.maximum(1, norms / s.clip_norm)[:, None]).sum(0)
        rho -= rho_ng
        if rho < 0:
            return w, log
        log.append("gradient")
        noisy = g + math.sqrt((factor * s.clip_norm) ** 2 / (2 * rho_ng)) * noise()
        i = 0
        while i == 0:
            phi = np.linspace(0, alpha_max, s.candidates)
            points = [w - alpha * noisy / np.linalg.norm(noisy) for alpha in phi]
            rho -= rho_nmax
            if rho < 0:
                return w, log
            log.append("choice")
            omega = np.array([np.minimum(logistic(p, x, y)[0], s.clip_loss).sum() for p in points])
            laplace = KEY.generator(CHOICE, index).laplace(size=s.candidates)
            index += 1
            i = int((omega + factor * s.clip_loss / math.sqrt(2 * rho_nmax) * laplace).argmin())
            if i > 0:
                w = points[i]
                taken.append(phi[i])
                continue
            old, rho_ng = rho_ng, (1 + s.increase) * rho_ng
            rho -= rho_ng - old
            if rho < 0:
                return w, log
            log.append("more")
            second = g + math.sqrt((factor * s.clip_norm) ** 2 / (2 * (rho_ng - old))) * noise()
            noisy = (old * noisy + (rho_ng - old) * second) / rho_ng
        if len(taken) % s.refresh == 0:
            alpha_max = (1 + s.widen) * max(taken[-s.refresh :])


@pytest.mark.parametrize(("relation", "factor"), [("add-remove", 1.0), ("replace-one", 2.0)])
def test_dp_agd_equals_lee_and_kifers_algorithm(relation: str, factor: float) -> None:
    x, y = examples(1)
    held = budget_gate()
    end = descend(SETTINGS, TASK, x, y, START, held, KEY, relation)
    expected, log = algorithm(x.numpy(), y.numpy(), held.limit, SETTINGS, factor)
    assert end.params.numpy() == pytest.approx(expected, rel=1e-8)
    assert (end.releases, end.stopped) == (len(log), "budget")
    assert len(end.steps) >= 5
    assert log.count("more") >= 2  # both branches were taken
    assert end.rho == pytest.approx(SETTINGS.gradient_share * held.limit * 1.1 ** log.count("more"), rel=0.11)


def test_charges_go_through_the_filter_and_into_the_ledger(tmp_path: Path) -> None:
    x, y = examples(1)
    with Ledger.create(tmp_path / "ledger.jsonl", {}) as ledger:
        held = budget_gate(ledger=ledger)
        end = descend(SETTINGS, TASK, x, y, START, held, KEY)
    events = read(tmp_path / "ledger.jsonl").events
    assert len(events) == end.releases
    assert {event.mechanism for event in events} == {"gaussian", "noisy-max"}
    rho = sum(0.5 / event.noise_multiplier**2 for event in events)
    assert rho == pytest.approx(held.used * held.limit)
    assert 0.96 < held.used <= 1
    assert epsilon(events, 1e-5, "zcdp").epsilon <= 0.4


@pytest.mark.parametrize("shift", [(0.0, 1.0, 1.0), (1.0, 0.0, 0.0), (0.3, 0.9, 0.5), (1.0, 1.0, 1.0)])
@pytest.mark.parametrize("gaps", [(0.0, 0.0, 0.0), (0.0, 4.0, 9.0), (30.0, 0.0, 20.0)])
def test_noisy_max_is_as_private_as_its_event(shift: tuple[float, ...], gaps: tuple[float, ...]) -> None:
    """One unit more moves all values up by at most S = 1: exact probabilities, by quadrature, at scale z."""
    z = 2.0

    def law(values: np.ndarray) -> np.ndarray:
        noise = stats.laplace(scale=z)

        def chosen(i: int) -> float:
            others = np.delete(values, i)
            points = sorted([*values, *(values - 40 * z), *(values + 40 * z)])
            return sum(
                quad(lambda t: noise.pdf(t - values[i]) * noise.sf(t - others).prod(), a, b, epsabs=1e-15)[0]
                for a, b in itertools.pairwise(points)
            )

        return np.array([chosen(i) for i in range(len(values))])

    values = np.array(gaps)
    one, other = law(values), law(values + np.array(shift))
    assert one.sum() == pytest.approx(1, abs=1e-9)
    ratio = np.abs(np.log(one / other)).max()
    assert ratio <= 1 / z + 1e-6
    if gaps == (30.0, 0.0, 20.0) and shift == (1.0, 0.0, 0.0):
        assert ratio > 0.9 / z  # nearly what is claimed


def test_noisy_max_has_the_noise_of_its_event() -> None:
    """2,000 choices of two values one apart, z = 1.5 and S = 2, against P[Laplace difference > 1]: binomial
    within 5 std (flake rate below 1e-6, seed fixed); 1.5 times the noise is further off."""
    values, count = torch.tensor([0.0, 1.0]), 2000

    def expected(scale: float) -> float:
        gap = 1.0 / scale
        return 1 - (0.5 + gap / 4) * math.exp(-gap)

    found = sum(choose_least(values, 2.0, 1.5, KEY, i) == 0 for i in range(count))
    spread = 5 * math.sqrt(count / 4)
    assert abs(found - count * expected(3.0)) < spread
    assert abs(10 * (expected(3.0) - expected(4.5))) > 0.1
    wide = sum(choose_least(torch.tensor([0.0, 6.0]), 2.0, 1.5, KEY, i) == 0 for i in range(count))
    assert abs(wide - count * expected(0.5)) < spread
    assert choose_least(torch.tensor([2.0, 1.0, 3.0]), 5.0, 0.0, KEY, 0) == 1


def test_a_unit_moves_the_objective_up_and_by_no_more_than_the_bound() -> None:
    x, y = examples(2, 30)
    theta = torch.linspace(-9, 9, 12, dtype=torch.float64)
    # The bound takes effect: without it the same losses are far larger.
    assert (
        float(objective(TASK, theta, x, y, 0.7)) <= 30 * 0.7 < 0.1 * float(objective(TASK, theta, x, y, 1e9))
    )
    for broken in (None, math.nan, math.inf, 1e300):
        row = x[:1].clone() if broken is None else torch.full((1, 5), broken, dtype=torch.float64)
        more, labels = torch.cat([x, row]), torch.cat([y, y[:1]])
        rise = objective(TASK, theta, more, labels, 0.7) - objective(TASK, theta, x, y, 0.7)
        assert 0 <= float(rise) <= 0.7 + 1e-9
    falling = Task(torch.nn.Linear(5, 2), loss=lambda outputs, y: -outputs.square().sum(1))
    assert float(objective(falling, theta, x, y, 0.7)) == 0  # a gain is no loss: units move it one way only


class Centred(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(0))


def test_a_unit_moves_the_objective_by_no_more_than_the_bound_though_the_model_mixes_units() -> None:
    x, y = examples(2, 30)
    task = Task(Centred(5, 2))
    theta = torch.full((12,), 3.0, dtype=torch.float64)
    more, labels = torch.cat([x, torch.full((1, 5), 50.0, dtype=torch.float64)]), torch.cat([y, y[:1]])
    rise = objective(task, theta, more, labels, 0.7) - objective(task, theta, x, y, 0.7)
    assert 0 <= float(rise) <= 0.7 + 1e-9


def test_it_learns() -> None:
    x, y = examples(3)
    settings = DpAgd(clip_norm=3.0, clip_loss=3.0, most_steps=25)
    end = descend(settings, TASK, x, y, START, budget_gate(8.0), KEY)
    assert accuracy(end.params) > 0.85 > accuracy(START) + 0.2


def test_bad_input_is_refused_before_any_charge() -> None:
    x, y = examples(1)
    held = Filter(Budget(1.0, 1e-5, "rdp"))
    with pytest.raises(ArgumentError, match="accounting is 'rdp'; it must be one of zcdp"):
        descend(SETTINGS, TASK, x, y, START, held, KEY)
    assert held.used == 0
    for change, text in (
        ({"clip_norm": 0.0}, "clip-norm"),
        ({"clip_loss": math.inf}, "clip-loss"),
        ({"gradient_share": 1.0}, "gradient-share"),
        ({"choice_share": 0.0}, "choice-share"),
        ({"candidates": 1}, "candidates"),
        ({"increase": 0.0}, "increase"),
    ):
        with pytest.raises(ArgumentError, match=text):
            dataclasses.replace(SETTINGS, **change)
    with pytest.raises(ArgumentError, match="relation is 'both'"):
        descend(SETTINGS, TASK, x, y, START, budget_gate(), KEY, "both")


def test_a_public_penalty_moves_the_minimum_and_no_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is outside the clips: a strong one holds theta near 0, and the first step costs the same."""
    x, y = examples(60)
    ends: list[torch.Tensor] = []
    charged: list[list[Event]] = []
    for penalty in (None, lambda at: 600 * at.square().sum()):
        gate, own = budget_gate(200.0), list[Event]()
        pay = gate.charge
        monkeypatch.setattr(gate, "charge", lambda e, own=own, pay=pay: own.extend(e) or pay(e), raising=True)
        settings = dataclasses.replace(SETTINGS, most_steps=6)
        ends.append(descend(settings, TASK, x, y, START + 0.5, gate, KEY, penalty=penalty).params)
        charged.append(own)
    assert charged[0][:2] == charged[1][:2]
    assert [event.mechanism for event in charged[1][:2]] == ["gaussian", "noisy-max"]
    assert float(ends[1].norm()) < 0.5 * float((START + 0.5).norm())
    assert float(ends[1].norm()) < 0.7 * float(ends[0].norm())
