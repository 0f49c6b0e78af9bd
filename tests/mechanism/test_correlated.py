"""Correlated noise: its matrix, its sensitivity, its covariance, its groups and its cost."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch
from helpers.toys import CountingGate, RowsEngine, world
from scipy import stats

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Event, epsilon
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, Progress, advance, run
from fedpriv.mechanism import correlated
from fedpriv.mechanism.correlated import (
    NoiseRecursion,
    coefficients,
    has_room,
    inverse,
    multiples,
    norm,
    prefix_noise,
)
from fedpriv.mechanism.placement import Central
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.mechanism.release import draw_ahead, release
from fedpriv.mechanism.rounded_gaussian import Rounded
from fedpriv.mechanism.sampling import CyclicPoisson
from fedpriv.optimizers import AdaptiveClipping, dp_sgd, dynamic_dp_sgd
from fedpriv.optimizers.first_order import Sgd
from fedpriv.rng import Key

START = torch.zeros(20, dtype=torch.float64)


def matrix(bands: int, rounds: int) -> np.ndarray:
    """C by its definition."""
    c = coefficients(bands)
    entry = [[c[i - j] if 0 <= i - j < bands else 0.0 for j in range(rounds)] for i in range(rounds)]
    return np.array(entry)


def participations(rounds: int, group: int, bands: int) -> list[tuple[int, ...]]:
    """All sets of releases that a unit of a group can be in."""
    turns = range(group, rounds, bands)
    return [s for k in range(len(turns) + 1) for s in itertools.combinations(turns, k)]


@pytest.mark.parametrize(("bands", "rounds"), [(1, 6), (2, 12), (3, 12), (4, 12), (12, 12)])
def test_a_participation_costs_one_release_of_the_charged_multiplier(bands: int, rounds: int) -> None:
    """Over all patterns and signs, C moves by at most sqrt(k) for k participations: k Gaussian releases."""
    c, worst = matrix(bands, rounds), dict[int, float]()
    sampler = CyclicPoisson(rounds, 1 / rounds, bands)
    for group in range(bands):
        for steps in participations(rounds, group, bands):
            assert all(sampler.at(t).group == group for t in steps)
            for signs in itertools.product((1, -1), repeat=len(steps)):
                moved = c[:, list(steps)] @ np.array(signs) if steps else np.zeros(rounds)
                worst[len(steps)] = max(worst.get(len(steps), 0.0), float(np.linalg.norm(moved)))
    assert worst == pytest.approx({k: k**0.5 for k in worst}, abs=1e-12)


@pytest.mark.parametrize("bands", [1, 2, 5, 64])
def test_the_largest_column_norm_is_one(bands: int) -> None:
    norms = np.linalg.norm(matrix(bands, 80), axis=0)
    assert norms.max() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("bands", [1, 3, 8])
def test_the_coefficients_are_those_of_the_square_root(bands: int) -> None:
    """The uncut square root, squared, is the matrix of prefix sums; to the 2^-16 of integers."""
    c = np.array(coefficients(bands))
    square = np.convolve(c, c)[:bands] / c[0] ** 2
    np.testing.assert_allclose(square, np.ones(bands), atol=bands * 2**-16)
    np.testing.assert_allclose(c / c[0] * correlated._UNIT, np.array(multiples(bands)), rtol=1e-12)
    np.testing.assert_allclose(np.linalg.inv(matrix(bands, 12))[:, 0], inverse(bands, 12), atol=1e-12)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("bands", [2, 4])
def test_the_released_noise_has_the_inverse_s_covariance(bands: int, exact: bool) -> None:
    """Of 200,000 entries; a fault of 2 % in any of the 36 covariances is seen, and chance fails 1e-6."""
    rounds, d, z, clip_norm = 8, 200_000, 1.5, 2.0
    recursion, key, rows = NoiseRecursion(bands), Key.from_seed(5), []
    query = Query((torch.zeros(d),), (SumBlock((Term(clip_norm=clip_norm),)),))
    for t in range(rounds):
        zero = (torch.zeros(d, dtype=torch.float64),)
        answer = release(zero, 1, query, z, Central(exact=exact), 10.0, key, t, recursion=recursion)
        assert answer is not None
        rows.append(answer[0].double() * 10 / (z * clip_norm))
    found = np.cov(torch.stack(rows).numpy(), bias=True)
    inverted = np.linalg.inv(matrix(bands, rounds))
    expected = inverted @ inverted.T
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / d)
    assert (abs(found - expected) < 5.5 * spread).all()
    assert (spread < 0.02).all()


@pytest.mark.parametrize("bands", [2, 5, 40])
def test_exact_noise_rounds_the_recursion_once_in_a_release(bands: int) -> None:
    """n_t + q_1 n_{t-1} + ... differs from norm(q) s w_t by at most 1/2, for w_t to 2^-40 from its stream.

    So r_t = round(g_t - q_1 r_{t-1} - ...) for the Gaussian release g: another sign, another norm, a second
    rounding or a fraction that is lost would differ by more.
    """
    recursion, key, scale, d = NoiseRecursion(bands), Key.from_seed(9), 2.0**27, 501
    like, q = [torch.zeros(d)], np.array(multiples(bands)) / correlated._UNIT
    drawn, residues = list[np.ndarray](), list[np.ndarray]()
    for t in range(50):
        label = ("server-noise", t)
        [w] = Rounded(key, label, like, [2.0**40]).take()
        [n] = recursion.rounded(key, label, like, [scale]).take()
        assert n.equal(n.round())
        drawn.insert(0, n.numpy())
        combined = sum(a * b for a, b in zip(q, drawn, strict=False))
        residues.append(combined - np.linalg.norm(q) * scale * (w.numpy() / 2.0**40))
    found = np.concatenate(residues)
    assert np.abs(found).max() <= 0.5 + 1e-3
    assert stats.kstest(found, "uniform", args=(-0.5, 1)).pvalue > 1e-6


@pytest.mark.parametrize("bands", [1, 2, 3, 8, 100, 1024])
def test_integers_of_64_bits_have_room(bands: int) -> None:
    """The bounds by which a scale is refused: the sums of q and of the inverse's coefficients."""
    q = np.array(multiples(bands), dtype=np.float64)
    assert q.sum() / q[0] < 2 * bands**0.5
    inverted = np.abs(np.array(inverse(bands, 4 * bands + 50))).sum() * coefficients(bands)[0]
    assert inverted < 4
    most = correlated._MOST / bands**0.5 / norm(bands)
    assert q.sum() * inverted * 9.5 * norm(bands) * most < 2**63
    assert has_room(bands, 0.999 * most)
    with pytest.raises(ValueError, match=f"no room with {bands} bands"):
        NoiseRecursion(bands).rounded(Key.from_seed(0), ("server-noise", 0), [torch.zeros(2)], [2 * most])


def test_exact_noise_is_one_release_at_a_time_and_of_one_scale() -> None:
    recursion, key, like = NoiseRecursion(3), Key.from_seed(9), [torch.zeros(4)]
    first = recursion.rounded(key, ("server-noise", 0), like, [2.0**27])
    second = recursion.rounded(key, ("server-noise", 1), like, [2.0**27])
    first.take()
    with pytest.raises(ValueError, match="two releases was drawn at a time"):
        second.take()
    with pytest.raises(ArgumentError, match="differs from that of earlier releases"):
        recursion.rounded(key, ("server-noise", 1), like, [2.0**26])


def test_noise_that_is_drawn_ahead_is_the_same() -> None:
    query = Query((torch.zeros(300),), (SumBlock((Term(clip_norm=1.0),)),))
    place, key, answers = Central(exact=True), Key.from_seed(2), []
    for early in (True, False):
        recursion, own = NoiseRecursion(3), []
        for t in range(5):
            ahead = draw_ahead(query, 1.0, place, key, t, recursion) if early else None
            zero = (torch.ones(300, dtype=torch.float64),)
            answer = release(zero, 1, query, 1.0, place, 1.0, key, t, ahead, recursion)
            assert answer is not None
            own.append(answer[0])
        answers.append(torch.stack(own))
    assert answers[0].equal(answers[1])


def test_prefix_noise_is_that_of_the_matrices() -> None:
    sums = np.tril(np.ones((30, 30))) @ np.linalg.inv(matrix(4, 30))
    assert prefix_noise(4, 30) == pytest.approx(np.sqrt((sums**2).sum(1).mean()), rel=1e-12)
    assert prefix_noise(1, 30) == pytest.approx(np.sqrt(31 / 2), rel=1e-12)


def test_a_release_asks_its_own_group_and_no_unit_too_soon() -> None:
    sampler, key, last = CyclicPoisson(97, 0.2, 4), Key.from_seed(1), dict[int, int]()
    source, sizes = CohortSampler(sampler, key, 50), list[int]()
    for t in range(400):
        ids = [int(i) for shard in source.draw(t) for i in shard.ids]
        sizes.append(len(ids))
        for i in ids:
            assert i % 4 == t % 4
            assert 0 <= i < 97
            assert t - last.get(i, t - 4) >= 4
            last[i] = t
    # mean 97 * 0.2 = 19.4, its std below 0.11: five stds
    assert abs(np.mean(sizes) - 19.4) < 0.55
    assert len(last) == 97


def test_whole_groups_are_a_fixed_order() -> None:
    sampler = CyclicPoisson(20, 0.2, 5)
    cohorts = [sampler.at(t).draw(Key.from_seed(t).generator("cohort", t)).tolist() for t in range(5)]
    assert cohorts == [list(range(g, 20, 5)) for g in range(5)]
    assert not sampler.event(1.0).sampled


@pytest.mark.parametrize(
    ("rate", "bands", "rounds", "z"),
    [(0.01, 8, 150, 1.2), pytest.param(0.02, 50, 100, 2.5, marks=pytest.mark.slow)],
)
def test_epsilon_is_that_of_dp_accounting_for_each_group(
    rate: float, bands: int, rounds: int, z: float
) -> None:
    import dp_accounting
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

    sampler, delta = CyclicPoisson(1000, rate, bands), 1e-5
    found = epsilon([sampler.at(t).event(z) for t in range(rounds)], delta).epsilon
    theirs = []
    for group in range(bands):
        accountant = PLDAccountant()
        one = dp_accounting.PoissonSampledDpEvent(rate * bands, dp_accounting.GaussianDpEvent(z))
        accountant.compose(one, len(range(group, rounds, bands)))
        theirs.append(accountant.get_epsilon(delta))
    assert found == pytest.approx(max(theirs), abs=1e-3)


def test_mixed_groups_have_an_upper_bound_alone() -> None:
    """No unit is in group 0 of the first kind and group 1 of the second: both together cost more."""
    turns = [Event(z, "poisson", "add-remove", groups=2, group=g) for g, z in ((0, 2.0), (1, 3.0))]
    found = epsilon(turns, 1e-5)
    both = epsilon([Event(z, "none", "add-remove") for z in (2.0, 3.0)], 1e-5)
    assert found.epsilon == pytest.approx(both.epsilon, rel=1e-6)
    assert found.epsilon_lower is None
    assert epsilon(turns[:1], 1e-5).epsilon_lower is not None


def go(mechanism: Mechanism, gate: CountingGate, seen: list[Progress]) -> torch.Tensor:
    key = Key.from_seed(3)
    source = CohortSampler(mechanism.sampler, key, 7)
    return run(mechanism, START, RowsEngine(world(1)), gate, key, source, seen.append).state.params


def test_the_loop_charges_the_group_that_it_asks_and_stores_no_noise() -> None:
    mechanism = Mechanism(dp_sgd(0.2, 1.0), CyclicPoisson(40, 0.2, 4), Central(), 0.5, 10)
    gate, seen = CountingGate(), list[Progress]()
    go(mechanism, gate, seen)
    assert tuple(gate.charged) == mechanism.planned_events()
    assert [event.group for event in gate.charged] == [t % 4 for t in range(10)]
    assert {event.rate for event in gate.charged} == {0.8}
    plain = Mechanism(dp_sgd(0.2, 1.0), CyclicPoisson(40, 0.2, 1), Central(), 0.5, 10)
    others = list[Progress]()
    go(plain, CountingGate(), others)
    assert [set(p.state.tensors()) for p in seen] == [set(p.state.tensors()) for p in others]
    with pytest.raises(TypeError, match="past noise must not be stored"):
        pickle.dumps(NoiseRecursion(4))


@pytest.mark.parametrize("exact", [True, False])
def test_the_loop_adds_the_recursion_s_noise(exact: bool) -> None:
    """With cohorts of nobody, what is released is the correlated noise of the loop's own streams."""
    place = Central(exact=exact)
    mechanism = Mechanism(dp_sgd(1.0, 2.0), CyclicPoisson(40, 1e-9, 3), place, 0.5, 6)
    seen = list[Progress]()
    go(mechanism, CountingGate(), seen)
    assert len(seen) == 6
    independent = Mechanism(dp_sgd(1.0, 2.0), CyclicPoisson(40, 1e-9, 1), place, 0.5, 6)
    others = list[Progress]()
    go(independent, CountingGate(), others)

    def noises(of: list[Progress]) -> np.ndarray:
        points = torch.stack([START, *(p.state.params for p in of)])
        return (points[:-1] - points[1:]).numpy()

    # Integers are rounded to 2^-26 of the clip norm, which the expected cohort of 4e-8 divides.
    far = 4 * 2.0 * 2**-26 / 4e-8 if exact else 0
    np.testing.assert_allclose(matrix(3, 6) @ noises(seen), noises(others), rtol=1e-9, atol=far)


@pytest.mark.parametrize("exact", [True, False])
def test_a_resumed_run_begins_a_new_recursion(exact: bool) -> None:
    """Its first noise is w / c_0, with no part of the noise before."""
    bands, place = 3, Central(exact=exact)
    mechanism = Mechanism(dp_sgd(1.0, 2.0), CyclicPoisson(40, 1e-9, bands), place, 0.5, 6)
    seen, key = list[Progress](), Key.from_seed(3)
    go(mechanism, CountingGate(), seen)
    resumed = list[Progress]()
    source, gate = CohortSampler(mechanism.sampler, key, 7), CountingGate()
    state = seen[2].state
    # release 3 was charged and lost
    advance(mechanism, state, 6, RowsEngine(world(1)), gate, key, source, resumed.append, first=4)
    assert [event.group for event in gate.charged] == [1, 2, 0]
    plain, others = Mechanism(dp_sgd(1.0, 2.0), CyclicPoisson(40, 1e-9, 1), place, 0.5, 6), []
    source = CohortSampler(plain.sampler, key, 7)
    advance(plain, state, 6, RowsEngine(world(1)), CountingGate(), key, source, others.append, first=4)
    first, w = (state.params - p[0].state.params for p in (resumed, others))
    far = 2.0 * 2**-26 / 4e-8 if exact else 0  # a step
    torch.testing.assert_close(first * coefficients(bands)[0], w, rtol=1e-9, atol=far)


REFUSED = {
    "falling noise": dynamic_dp_sgd(Sgd(), 0.2, 2.0, 25, rho_c=1.0, rho_mu=2.0),
    "norm bits": AdaptiveClipping(dp_sgd(0.2, 1.0)),
}


@pytest.mark.parametrize(("name", "made"), [("falling noise", 1), ("norm bits", 0)])
def test_the_loop_refuses_what_is_not_proved(name: str, made: int) -> None:
    """It charges nothing for it; the first release of falling noise is as any other."""
    mechanism = Mechanism(REFUSED[name], CyclicPoisson(40, 0.2, 4), Central(), 0.5, 25)
    gate = CountingGate()
    with pytest.raises(ArgumentError, match="noise-bands is 4; it must be 1"):
        go(mechanism, gate, [])
    assert len(gate.charged) == made


def test_groups_that_cannot_be() -> None:
    with pytest.raises(ArgumentError, match=r"noise-bands is 6; it must be at most 1 / 0\.2"):
        CyclicPoisson(40, 0.2, 6)
    with pytest.raises(ArgumentError, match="at most the population, 4"):
        CyclicPoisson(4, 0.01, 5)
    with pytest.raises(ArgumentError, match="group is 2; it must be below the number of groups, 2"):
        Event(1.0, "poisson", "add-remove", rate=0.5, groups=2, group=2)
