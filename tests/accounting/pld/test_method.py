"""Certified bounds on epsilon against independent oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from helpers.events import fixed_size, poisson
from helpers.methods_suite import MethodSuite
from helpers.mixture_integrals import exact
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from fedpriv.accounting import Event, advantage, epsilon
from fedpriv.accounting.methods import gaussian
from fedpriv.accounting.methods.registry import epsilons
from fedpriv.accounting.pld.convolution import longer
from fedpriv.accounting.pld.discretisation import Group, choose
from fedpriv.accounting.pld.method import Pld, PldProfile, _nodes

LONG = pytest.mark.skipif(longer() is None, reason="no longer floating-point type here")


def falling(steps: int = 5000) -> list[Event]:
    return [poisson(float(z), 1e-3) for z in 0.5 ** (np.arange(steps) / (steps - 1))]


def upstream(events: list[Event], delta: float, interval: float) -> float:
    relation = (
        NeighboringRelation.ADD_OR_REMOVE_ONE
        if events[0].relation == "add-remove"
        else NeighboringRelation.REPLACE_ONE
    )
    accountant = PLDAccountant(relation, interval)
    for event in events:
        inner = GaussianDpEvent(event.noise_multiplier)
        accountant.compose(PoissonSampledDpEvent(event.rate, inner), event.count)
    return float(accountant.get_epsilon(delta))


class TestPld(MethodSuite):
    method, kind = "pld", "bound"
    slack = 5e-3  # two lattices differ

    def test_lower_is_below_and_near(self) -> None:
        answer = self.spent(self.event(0.8, 0.02, 300))
        assert answer.epsilon_lower is not None
        assert answer.epsilon * 0.998 < answer.epsilon_lower < answer.epsilon


class TestFixedSize(MethodSuite):
    method, kind = "pld", "bound"
    slack = 5e-3

    event = staticmethod(fixed_size)


@pytest.mark.parametrize(
    "events",
    [
        [poisson(1.0, 0.02), poisson(2.0, 0.02)],
        [poisson(1.0, 0.1, 100)],
        [poisson(0.5, 0.01, 200)],
        [poisson(5.0, 0.5, 1000)],
        [poisson(0.7, 1e-3, 5000)],
        [poisson(1.0 + i / 10, 0.02, 30) for i in range(4)],
        [Event(1.0, "poisson", "replace-one", rate=0.1, count=100)],
    ],
)
def test_brackets_dp_accounting(events: list[Event]) -> None:
    answer = epsilon(events, 1e-5)
    theirs = upstream(events, 1e-5, 1e-3 if len(events) > 2 else 2e-4)
    assert answer.epsilon_lower is not None
    # dp-accounting's value is an upper bound with the errors of its own lattice.
    assert answer.epsilon_lower <= theirs <= answer.epsilon * 1.003
    assert answer.epsilon <= theirs * 1.002


@pytest.mark.slow
def test_brackets_dp_accounting_for_sixteen_groups() -> None:
    events = [poisson(float(z), 2e-3, 50) for z in np.geomspace(1.2, 0.6, 16)]
    answer, theirs = epsilon(events, 1e-6), upstream(events, 1e-6, 1e-4)
    assert answer.epsilon_lower is not None
    assert answer.epsilon_lower <= theirs <= answer.epsilon <= theirs * 1.002


@pytest.mark.parametrize(("q", "z", "eps"), [(0.01, 1.0, 0.02), (0.3, 0.7, 1.0), (0.05, 3.0, 0.01)])
def test_one_release_against_integration(q: float, z: float, eps: float) -> None:
    answer = epsilon([poisson(z, q)], max(exact(q, z, eps)))
    assert answer.epsilon_lower is not None
    assert eps * 0.995 < answer.epsilon_lower <= eps <= answer.epsilon < eps * 1.005


def profile_of(*events: Event, delta: float = 1e-5) -> PldProfile:
    [profile] = Pld().stages([dict.fromkeys(events, 1)], delta)
    assert isinstance(profile, PldProfile)
    return profile


@pytest.mark.parametrize(("q", "z"), [(0.3, 0.7), (0.05, 3.0)])
def test_each_direction_has_bounds_of_its_own(q: float, z: float) -> None:
    """Adding a unit costs no more than removing it in these runs, so epsilon does not show its bounds."""
    for eps in (-0.2 * math.log1p(-q), -0.7 * math.log1p(-q)):
        for way, delta in enumerate(exact(q, z, eps)):
            profile = profile_of(poisson(z, q), delta=delta)
            lower, upper = profile.lowers[way].lower(delta), profile.uppers[way].upper(delta)
            assert eps * 0.99 < lower <= eps <= upper < eps * 1.01


def test_epsilon_is_that_of_the_costlier_direction() -> None:
    [low, high] = (profile_of(poisson(z, 0.1)).uppers[0] for z in (2.0, 1.0))
    most = (low.upper(1e-5) + high.upper(1e-5)) / 2
    for curves in ((low, high), (high, low)):
        assert PldProfile(curves, curves).epsilon(1e-5) == (high.upper(1e-5), high.lower(1e-5))
    # Only the loss of an added unit has a largest value.
    assert PldProfile((low, high), (), most).epsilon(1e-5) == (most, None)
    assert PldProfile((high, low), (), most).epsilon(1e-5) == (high.upper(1e-5), None)


def test_the_largest_loss_of_an_added_unit_is_attained() -> None:
    profile = profile_of(poisson(0.2, 0.5), poisson(0.25, 0.5), poisson(0.2, 0.25))
    [three] = Pld().stages([{poisson(0.2, 0.5): 3}], 1e-5)
    for found, most in ((profile, 2 * math.log(2) + math.log(4 / 3)), (three, 3 * math.log(2))):
        assert found.most == pytest.approx(most, rel=1e-9)
        assert found.most * 0.999 < found.lowers[1].lower(1e-5) <= found.most


def test_multipliers_share_nodes_below_them_for_the_upper_bound_and_above_for_the_lower() -> None:
    """In every cell, the first and the last included, a node has exactly the multipliers next to it."""
    z = np.linspace(1.0, 1.02, 400)
    counts = np.random.Generator(np.random.Philox(1)).integers(0, 9, (2, len(z)))
    group = Group("poisson", 0.01, z, counts)
    nodes, down, up = _nodes(group, choose([group], 1e-5))
    assert 8 < len(nodes) < 20
    assert (nodes[0], nodes[-1]) == (z[0], z[-1])
    for k, node in enumerate(nodes):
        assert down[:, k:].sum(axis=1).tolist() == counts[:, z >= node].sum(axis=1).tolist()
        assert up[:, : k + 1].sum(axis=1).tolist() == counts[:, z <= node].sum(axis=1).tolist()


@pytest.mark.parametrize("delta", [1e-3, 1e-7, 1e-12])
def test_gaussians_through_the_lattice_are_the_closed_form(delta: float) -> None:
    # One release that hardly samples anyone keeps the plain Gaussians on the lattice.
    events = [Event(2.0, "none", "add-remove", count=9), poisson(50.0, 1e-12)]
    answer, truth = epsilon(events, delta), gaussian.epsilon(1.5, delta)
    assert answer.epsilon_lower is not None
    assert answer.epsilon_lower <= truth <= answer.epsilon
    assert answer.epsilon <= answer.epsilon_lower * 1.002


def test_known_figures() -> None:
    def value(event: Event) -> float:
        return epsilon([event], 1e-5).epsilon

    assert value(poisson(1.0, 0.1, 100)) == pytest.approx(7.05, abs=5e-3)
    assert value(poisson(0.5, 0.01, 200)) == pytest.approx(7.73, abs=5e-3)
    assert value(Event(1.0, "none", "add-remove", count=100)) == pytest.approx(91.8, abs=5e-2)
    assert value(Event(1.0, "poisson", "replace-one", rate=0.1, count=100)) == pytest.approx(10.5, abs=5e-2)
    assert value(Event(2.0, "none", "add-remove")) == pytest.approx(1.99, abs=5e-3)
    assert value(Event(2.0, "none", "replace-one")) == pytest.approx(4.38, abs=5e-3)


def test_fixed_size_sampling_lies_between_its_bounds() -> None:
    answer = epsilon([Event(1.0, "without-replacement", "replace-one", rate=0.1, count=100)], 1e-5)
    assert answer.epsilon_lower == pytest.approx(31.4, abs=0.1)
    assert answer.epsilon_lower < answer.epsilon < 35


@pytest.mark.parametrize(
    ("z", "rate", "count", "delta"),
    [(5.0, 1e-3, 20_000, 1e-6), (2.0, 1e-5, 100_000, 1e-6), (29.7, 0.028, 934_876, 1e-5)],
)
def test_many_releases_of_fixed_size_are_not_overstated(
    z: float, rate: float, count: int, delta: float
) -> None:
    answer = epsilon([fixed_size(z, rate, count)], delta)
    assert answer.epsilon_lower is not None
    assert answer.epsilon_lower <= answer.epsilon < 1.4 * answer.epsilon_lower
    assert answer.epsilon < epsilon([fixed_size(z, rate, count)], delta, "rdp").epsilon


@pytest.mark.slow
def test_thousands_of_distinct_multipliers() -> None:
    answer = epsilon(falling(), 4e-7)
    assert answer.epsilon_lower is not None
    assert 3.92 <= answer.epsilon_lower <= answer.epsilon <= 4.01
    assert answer.epsilon <= answer.epsilon_lower * 1.01


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_losses_too_large_for_the_lattice_are_bounded_on_both_sides(relation: str) -> None:
    """Plain releases of hundreds of epsilon beside sampled ones gave NaN in an earlier version."""
    loud = Event(0.6, "none", relation, count=900)
    sampled = Event(1.0, "poisson", relation, rate=0.01, count=100)
    alone = epsilon([loud], 1e-6)
    both = epsilon([sampled, loud], 1e-6)
    assert alone.epsilon_lower <= both.epsilon_lower <= both.epsilon
    assert alone.epsilon < both.epsilon < alone.epsilon + epsilon([sampled], 1e-6).epsilon + 20
    assert epsilon([sampled, loud], 1e-7).epsilon > both.epsilon
    assert advantage([sampled, loud]) == 1.0
    stages = epsilons([[sampled], [loud]], 1e-6)
    assert stages[1].epsilon == pytest.approx(both.epsilon, rel=1e-3)
    assert stages[0].epsilon >= epsilon([sampled], 1e-6).epsilon_lower


@pytest.mark.parametrize(
    "kind",
    [
        ("poisson", "add-remove"),
        pytest.param(("without-replacement", "replace-one"), marks=pytest.mark.slow),
    ],
)
@settings(max_examples=12)
@given(
    st.lists(st.tuples(st.floats(0.3, 10), st.integers(1, 300) | st.just(1)), min_size=1, max_size=4),
    st.floats(1e-4, 0.9),
    st.sampled_from([1e-3, 1e-6, 1e-12]),
)
def test_lower_below_upper_below_rdp(
    kind: tuple[str, str], runs: list[tuple[float, int]], rate: float, delta: float
) -> None:
    events = [Event(z, *kind, rate=rate, count=n) for z, n in runs]
    answer = epsilon(events, delta)
    assert answer.epsilon_lower is not None
    assert 0 <= answer.epsilon_lower <= answer.epsilon
    if kind[0] == "poisson":
        assert answer.epsilon <= max(answer.epsilon_lower * 1.02, answer.epsilon_lower + 0.02)
    by_rdp = epsilon(events, delta, "rdp").epsilon
    # At epsilons that promise nothing, the loss leaves the window, and the bound is Chernoff's, which is
    # loose.
    assert answer.epsilon <= by_rdp * 1.001 + 1e-6 or by_rdp > 100


@settings(max_examples=25)
@given(st.floats(0.3, 10), st.floats(1e-4, 0.9), st.integers(1, 300))
@pytest.mark.slow
def test_relations_are_ordered(z: float, rate: float, count: int) -> None:
    """Replacing is removing and adding: it costs at least as much as removing at the same z."""
    add = epsilon([poisson(z, rate, count)], 1e-6)
    replace = epsilon([Event(z, "poisson", "replace-one", rate=rate, count=count)], 1e-6)
    fixed = epsilon([Event(z, "without-replacement", "replace-one", rate=rate, count=count)], 1e-6)
    assert add.epsilon_lower is not None
    assert replace.epsilon_lower is not None
    assert add.epsilon_lower <= replace.epsilon * (1 + 1e-9) + 1e-9
    assert replace.epsilon_lower <= fixed.epsilon * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize(
    ("event", "delta", "least", "most"),
    [
        (poisson(1e3, 1e-3, 100), 1e-8, 2.7e-5, 2.73e-5),
        (poisson(0.05, 0.5, 10), 1e-5, 2138.62, 2138.67),
        (poisson(1.0, 1e-9, 100), 1e-5, 0.0, 0.0),
        (poisson(1.0, 1e-2, 1000), 1e-12, 3.91, 3.92),
        (poisson(1.0, 0.01, 1000), 0.99, 0.0, 0.0),
        (poisson(1.0, 1e-3, 10**6), 1e-5, 5.99, 6.04),
        # the lattice's first edge is within round-off of the smallest loss
        (fixed_size(5.3614775523747475, 1.4092001052291093e-08, 2011), 1.3263758556433516e-05, 0.0, 0.0),
    ],
)
def test_extremes_are_answered(event: Event, delta: float, least: float, most: float) -> None:
    answer = epsilon([event], delta)
    assert answer.epsilon_lower is not None
    assert least <= answer.epsilon_lower <= answer.epsilon <= most


@pytest.mark.parametrize("size", [600, 720, 760, 1500])
def test_bounds_hold_where_exp_epsilon_overflows(size: float) -> None:
    """Two releases, each sampled with probability q; delta is the probability that both are sampled."""
    rate, delta = 0.6, 1e-5
    z = optimize.brentq(lambda z: 1 / z**2 + 4.3 * math.sqrt(2) / z - size, 1e-3, 1)
    mu = math.sqrt(2) / z

    def both(loss: float) -> float:
        tail = math.exp(loss + stats.norm.logcdf(-mu / 2 - loss / mu))
        return rate**2 * (stats.norm.cdf(mu / 2 - loss / mu) - tail) - delta

    true = optimize.brentq(both, 100, 2000) + 2 * math.log(rate)
    answer = epsilon([Event(z, "poisson", "add-remove", rate=rate, count=2)], delta)
    assert answer.epsilon_lower is not None
    assert answer.epsilon_lower <= true <= answer.epsilon
    assert answer.epsilon - answer.epsilon_lower < 0.2


def test_the_lower_bound_without_noise_is_infinite_only_if_a_unit_is_likely_sampled() -> None:
    assert epsilon([poisson(0.0, 0.1, 5)], 1e-5).epsilon_lower == math.inf
    hidden = epsilon([poisson(0.0, 1e-9)], 1e-5)
    assert (hidden.epsilon, hidden.epsilon_lower) == (math.inf, 0.0)


def test_stages_agree_with_separate_computations() -> None:
    events = [poisson(float(z), 0.01) for z in np.linspace(1.2, 0.8, 60)]
    stages = [events[:10], events[10:40], events[40:]]
    for answer, end in zip(epsilons(stages, 1e-5), (10, 40, 60), strict=True):
        alone = epsilon(events[:end], 1e-5)
        assert answer.epsilon_lower is not None
        assert alone.epsilon_lower is not None
        assert answer.epsilon_lower <= alone.epsilon
        assert alone.epsilon_lower <= answer.epsilon
        assert answer.epsilon == pytest.approx(alone.epsilon, rel=0.02)


@pytest.mark.parametrize("rate", [1e-9, 1e-7, 1e-6, 1e-5])
@pytest.mark.parametrize("kind", [("poisson", "add-remove"), ("without-replacement", "replace-one")])
def test_rare_cohorts_with_little_noise_are_not_overstated(rate: float, kind: tuple[str, str]) -> None:
    """Most of delta can be the probability of being sampled; a tilt fitted to the variance then sees only the
    tail."""
    answer = epsilon([Event(0.5 if kind[0] == "poisson" else 1.0, *kind, rate=rate, count=100)], 1e-6)
    assert answer.epsilon_lower is not None
    assert answer.epsilon_lower <= answer.epsilon < 1.01 * answer.epsilon_lower + 2e-3


@LONG
@pytest.mark.parametrize(
    ("rate", "z", "delta"), [(2.5e-7, 0.5, 1e-10), (2.5e-7, 0.4, 1e-10), (1e-5, 0.5, 1e-9)]
)
def test_rare_cohorts_of_many_rounds_are_not_overstated(rate: float, z: float, delta: float) -> None:
    """250 of 10^9 clients in each of 2,000 rounds: delta is far below the round-off of doubles."""
    answer = epsilon([poisson(z, rate, 2000)], delta)
    theirs = upstream([poisson(z, rate, 2000)], delta, 1e-4)
    assert answer.epsilon_lower is not None
    assert answer.epsilon_lower <= theirs * 1.0002  # their own round-off moves the sixth digit here
    assert theirs * 0.9998 < answer.epsilon < theirs * 1.03


def test_without_longer_numbers_the_bound_is_looser_and_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.accounting.pld.method.longer", lambda: None)
    [(upper, lower)] = [
        profile.epsilon(1e-10) for profile in Pld().stages([{poisson(0.5, 2.5e-7): 2000}], 1e-10)
    ]
    assert lower is not None
    assert lower < 0.02804 < upper < 1  # the value of dp-accounting


@LONG
def test_rare_cohorts_of_thousands_of_multipliers_are_not_overstated() -> None:
    answer = epsilon([poisson(float(z), 2.5e-7) for z in np.linspace(0.8, 0.4, 2000)], 1e-10)
    assert answer.epsilon_lower is not None
    assert answer.epsilon_lower <= answer.epsilon < 1.1 * answer.epsilon_lower


@pytest.mark.parametrize("growth", [2.0, pytest.param(10.0, marks=pytest.mark.slow)])
def test_multipliers_far_apart_at_a_small_rate(growth: float) -> None:
    """Most of the loss comes from the few smallest multipliers; the others' loss is far below the lattice's
    width."""
    events = [poisson(0.74 * growth ** (1 - t / 1000), 1e-3) for t in range(1, 1001)]
    answer = epsilon(events, 4e-7)
    assert answer.epsilon_lower is not None
    assert answer.epsilon_lower <= answer.epsilon < 1.1 * answer.epsilon_lower
