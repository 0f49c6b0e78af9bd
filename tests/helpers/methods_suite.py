"""Tests that every accounting method must pass; each method's test class inherits them."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import (
    Accountant,
    Budget,
    BudgetExceeded,
    Event,
    Ledger,
    PrivacyGuarantee,
    UnsupportedEvent,
    epsilon,
    scaled,
)
from fedpriv.accounting.ledger import read

DELTA = 1e-5
# The methods' classes share this one test, which is no harm: it keeps no state.
QUICK = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.differing_executors])


class MethodSuite:
    """Subclasses set ``method``, ``kind``, ``slack`` (relative, for monotony), ``little`` (at most what ten
    drowned releases cost), ``calm`` (noise at which a hundred cost no more than about 4) and ``event``."""

    method: str
    kind: str
    slack = 1e-9
    little = 1e-2
    calm = 1.0

    @staticmethod
    def event(z: float, rate: float, count: int = 1) -> Event:
        return Event(z, "poisson", "add-remove", rate=rate, count=count)

    def spent(self, *events: Event) -> PrivacyGuarantee:
        return epsilon(events, DELTA, self.method)

    def test_name_and_kind(self) -> None:
        answer = self.spent(self.event(1.0, 0.01, 10))
        assert (answer.method, answer.kind, answer.delta) == (self.method, self.kind, DELTA)
        assert answer.epsilon > 0

    @QUICK
    @given(st.floats(0.4, 5), st.sampled_from([0.001, 0.02, 0.3]), st.integers(1, 500), st.floats(1.05, 3))
    def test_rises_with_releases_and_rate_and_falls_with_noise(
        self, z: float, rate: float, count: int, factor: float
    ) -> None:
        here = self.spent(self.event(z, rate, count)).epsilon
        least = here * (1 - self.slack) - 1e-9
        assert self.spent(self.event(z, rate, math.ceil(count * factor))).epsilon >= least
        assert self.spent(self.event(z, rate * factor, count)).epsilon >= least
        assert self.spent(self.event(z / factor, rate, count)).epsilon >= least
        assert self.spent(self.event(z * factor, rate, count)).epsilon <= here * (1 + self.slack) + 1e-9

    def test_order_and_grouping_do_not_matter(self) -> None:
        events = [self.event(0.7 + 0.1 * (i % 5), 0.02) for i in range(40)]
        shuffled = random.Random(3).sample(events, len(events))
        joined = [self.event(0.7 + 0.1 * i, 0.02, 8) for i in range(5)]
        value = self.spent(*events).epsilon
        assert self.spent(*shuffled).epsilon == pytest.approx(value, rel=1e-12)
        assert self.spent(*joined).epsilon == pytest.approx(value, rel=1e-12)

    def test_a_replayed_ledger_gives_the_same_number(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger.jsonl"
        with Ledger.create(path, {}) as ledger:
            accountant = Accountant(Budget(50.0, DELTA, self.method), ledger=ledger)
            for i in range(6):
                accountant.charge([self.event(1.0 + 0.1 * i, 0.05)])
        assert self.spent(*read(path).events) == accountant.spent()

    def test_a_refused_charge_changes_nothing(self) -> None:
        enough = 1.5 * self.spent(self.event(1.0, 0.02, 11)).epsilon
        accountant = Accountant(Budget(enough, DELTA, self.method))
        accountant.charge([self.event(1.0, 0.02, 10)])
        before = accountant.spent()
        with pytest.raises(BudgetExceeded, match=r"51 more release\(s\) would exceed epsilon"):
            accountant.charge([self.event(1.0, 0.02), self.event(0.05, 0.9, 50)])
        assert accountant.spent() == before
        assert accountant.releases == 10
        accountant.charge([self.event(1.0, 0.02)])

    def test_extremes(self) -> None:
        assert self.spent().epsilon == 0
        assert self.spent(self.event(1.0, 0.0, 100)).epsilon == 0
        assert self.spent(self.event(math.inf, 0.5, 100)).epsilon == 0
        assert self.spent(self.event(0.0, 0.01)).epsilon == math.inf
        assert self.spent(self.event(0.0, 0.0)).epsilon == 0
        assert self.spent(self.event(1e3, 0.01, 10)).epsilon < self.little
        assert 0 < self.spent(self.event(1.0, 1.0, 3)).epsilon < 100

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
    def test_delta_is_checked(self, delta: float) -> None:
        with pytest.raises(ArgumentError, match="delta is"):
            epsilon([self.event(1.0, 0.1)], delta, self.method)

    def test_mixed_relations_are_refused(self) -> None:
        with pytest.raises(UnsupportedEvent, match="add-remove and replace-one"):
            self.spent(Event(1.0, "none", "add-remove"), Event(1.0, "none", "replace-one"))

    def test_replace_one_halves_the_plain_gaussian(self) -> None:
        one = epsilon([Event(2.0, "none", "replace-one", count=5)], DELTA, self.method).epsilon
        other = epsilon([Event(1.0, "none", "add-remove", count=5)], DELTA, self.method).epsilon
        assert one == pytest.approx(other, rel=1e-12)

    def test_truncation_raises_epsilon(self) -> None:
        event = Event(self.calm, "poisson", "add-remove", rate=0.02, truncation=1e-9, count=100)
        plain = Event(self.calm, "poisson", "add-remove", rate=0.02, count=100)
        value = self.spent(event).epsilon
        assert value > self.spent(plain).epsilon
        left = DELTA - (1 + math.exp(value)) * 1e-7
        assert value == pytest.approx(epsilon([plain], left, self.method).epsilon, rel=1e-3)
        assert value >= epsilon([plain], left, self.method).epsilon * (1 - 1e-6 - self.slack)
        assert self.spent(Event(1.0, "poisson", "add-remove", 0.02, truncation=1e-5)).epsilon == math.inf

    def test_more_noise_never_raises_epsilon(self) -> None:
        events = [self.event(0.8, 0.05, 20), self.event(1.5, 0.05, 20)]
        values = [self.spent(*(scaled(event, s) for event in events)).epsilon for s in (0.5, 1, 2, 4)]
        assert values == sorted(values, reverse=True)
