"""The loop: order, budget, failures, and pairs of runs that must be equal."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import CountingGate, RowsEngine, noise_free, world
from scipy import stats

from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import Accountant, Budget, Event, Filter, Ledger
from fedpriv.accounting import rounds as most_rounds
from fedpriv.accounting.ledger import read
from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.loop import MAX_EMPTY_RELEASES, Mechanism, Outcome, Progress, advance, run
from fedpriv.mechanism.placement import PLACEMENTS as PLACEMENT_TYPES
from fedpriv.mechanism.placement import Central, Distributed, Local, NoNoise, Placement
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.mechanism.sampling import Everyone, FixedSize, Poisson, Sampler
from fedpriv.optimizers import AdaptiveClipping, DpSrm, PlannedRelease, State, dp_adam, dp_sgd, dynamic_dp_sgd
from fedpriv.optimizers.first_order import Sgd
from fedpriv.optimizers.schedules import Constant
from fedpriv.rng import Key

KEY = Key.from_seed(3)
START = torch.zeros(20, dtype=torch.float64)


def go(
    mechanism: Mechanism,
    engine: RowsEngine,
    budget_gate: CountingGate | None = None,
    shard: int = 7,
    **cohorts: object,
) -> Outcome:
    source = CohortSampler(mechanism.sampler, KEY, shard, **cohorts)  # type: ignore[arg-type]
    return run(mechanism, START, engine, budget_gate or CountingGate(), KEY, source)


def test_no_noise_and_no_clipping_is_gradient_descent() -> None:
    rows = world(1)
    outcome = go(noise_free(dp_sgd(0.1, math.inf), 30), RowsEngine(rows))
    theta = START.clone()
    for _ in range(30):
        theta = theta - 0.1 * (theta - rows).mean(0)
    torch.testing.assert_close(outcome.state.params, theta, rtol=1e-10, atol=1e-12)


OPTIMIZERS = {
    "dp-sgd": dp_sgd(0.2, 1.0, momentum=0.5),
    "dp-adam": dp_adam(0.2, 1.0),
    "dynamic": dynamic_dp_sgd(Sgd(), 0.2, 2.0, 25, rho_c=3.0, rho_mu=2.0),
    "adaptive": AdaptiveClipping(dp_sgd(0.2, 1.0)),
}
PLACEMENTS = {
    "central": Central(),
    "local": Local(shares=12),
    "distributed": Distributed(shares=12, min_replies=10),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_plain_loop_is_the_vectorised_engine(name: str, placement: str) -> None:
    mechanism = Mechanism(OPTIMIZERS[name], FixedSize(40, 12), PLACEMENTS[placement], 0.5, 25)
    fast = go(mechanism, RowsEngine(world(1)))
    plain = go(mechanism, RowsEngine(world(1), plain=True))
    torch.testing.assert_close(fast.state.params, plain.state.params, rtol=1e-6, atol=1e-9)
    assert fast.state.step == 25


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_events_do_not_depend_on_the_data(name: str) -> None:
    mechanism = Mechanism(OPTIMIZERS[name], Poisson(40, 0.3), Central(), 0.8, 25)
    charged = []
    for seed in (1, 2):
        budget_gate = CountingGate()
        go(mechanism, RowsEngine(world(seed) * seed), budget_gate)
        charged.append(budget_gate.charged)
    assert charged[0] == charged[1] == list(mechanism.planned_events())


def test_empty_cohorts_are_charged_and_released_with_noise() -> None:
    """Otherwise the ledger and the model would tell that nobody was there."""
    mechanism = Mechanism(dp_sgd(0.1, 1.0), Poisson(40, 0.01), Central(), 1.0, 12)
    engine, budget_gate, models = RowsEngine(world(1)), CountingGate(), []
    cohorts = CohortSampler(mechanism.sampler, KEY, 7)
    run(mechanism, START, engine, budget_gate, KEY, cohorts, lambda now: models.append(now.state.params))
    empty = [release for release, request in enumerate(engine.asks) if not request.shards]
    assert 5 < len(empty) < 12  # of probability 0.67 each
    assert tuple(budget_gate.charged) == mechanism.planned_events()
    assert all(not torch.equal(models[release], models[release - 1]) for release in empty if release)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_converges_under_noise(name: str) -> None:
    rows = world(1)
    mechanism = Mechanism(OPTIMIZERS[name], Everyone(40), Central(), 0.5, 25)
    end = go(mechanism, RowsEngine(rows)).state.params
    assert float((end - rows.mean(0)).norm()) < 0.6 * float(rows.mean(0).norm())


def test_it_stops_before_the_release_that_would_pass_the_budget() -> None:
    engine, budget_gate = RowsEngine(world(1)), CountingGate(limit=4)
    mechanism = Mechanism(dp_sgd(0.1, 1.0), Everyone(40), Central(), 1.0, 10)
    outcome = go(mechanism, engine, budget_gate)
    assert (outcome.stopped, outcome.releases, outcome.state.step) == ("budget", 4, 4)
    assert len(engine.asks) == len(budget_gate.charged) == 4


def test_the_charge_comes_before_the_request() -> None:
    budget_gate = CountingGate()

    class Watcher(RowsEngine):
        def gather(self, request: SumRequest) -> PartialSum:
            assert len(budget_gate.charged) == request.release + 1
            return super().gather(request)

    go(
        Mechanism(dp_sgd(0.1, 1.0), Everyone(40), Central(), 1.0, 5),
        Watcher(world(1)),
        budget_gate,
    )
    assert len(budget_gate.charged) == 5


def test_the_charge_of_a_failed_gathering_remains() -> None:
    budget_gate = CountingGate()

    class Failing(RowsEngine):
        def gather(self, request: SumRequest) -> PartialSum:
            if request.release == 2:
                raise RuntimeError("lost")
            return super().gather(request)

    mechanism = Mechanism(dp_sgd(0.1, 1.0), Everyone(40), Central(), 1.0, 5)
    with pytest.raises(RuntimeError, match="lost"):
        go(mechanism, Failing(world(1)), budget_gate)
    assert len(budget_gate.charged) == 3


def test_too_few_replies_are_charged_and_do_not_count() -> None:
    class Flaky(RowsEngine):
        def gather(self, request: SumRequest) -> PartialSum:
            self.lost = 1 if request.release % 2 else 0
            return super().gather(request)

    budget_gate, seen = CountingGate(), []
    mechanism = Mechanism(dp_sgd(0.1, 1.0), FixedSize(40, 12), Distributed(12, 12), 1.0, 5)
    outcome = run(
        mechanism,
        START,
        Flaky(world(1)),
        budget_gate,
        KEY,
        CohortSampler(mechanism.sampler, KEY, 6),
        seen.append,
    )
    assert (outcome.state.step, outcome.releases, len(budget_gate.charged)) == (5, 9, 9)
    assert [progress.round for progress in seen] == [1, 2, 3, 4, 5]


def test_releases_that_nobody_answers_have_cohorts_of_their_own() -> None:
    """Each is charged as an independent draw, so the next release may not ask the same clients again."""

    class Deaf(RowsEngine):
        def gather(self, request: SumRequest) -> PartialSum:
            self.lost = 1 if request.release < 4 else 0
            return super().gather(request)

    engine, sampler = Deaf(world(1)), FixedSize(40, 12)
    go(Mechanism(dp_sgd(0.1, 1.0), sampler, Distributed(12, 12), 1.0, 2), engine)
    asked = [np.concatenate([shard.ids for shard in request.shards]).tolist() for request in engine.asks]
    assert asked == [sampler.draw(KEY.generator("cohort", release)).tolist() for release in range(6)]
    assert len(set(map(tuple, asked))) == 6


def test_a_federation_that_never_answers_ends_the_run() -> None:
    class Deaf(RowsEngine):
        def gather(self, request: SumRequest) -> PartialSum:
            self.lost = 1 if request.release >= 2 else 0
            return super().gather(request)

    budget_gate = CountingGate()
    mechanism = Mechanism(dp_sgd(0.1, 1.0), FixedSize(40, 12), Distributed(12, 12), 1.0, 50)
    outcome = go(mechanism, Deaf(world(1)), budget_gate)
    assert (outcome.stopped, outcome.state.step) == ("unanswered", 2)
    assert outcome.releases == len(budget_gate.charged) == 2 + MAX_EMPTY_RELEASES


def test_ctrl_c_keeps_the_state() -> None:
    mechanism = Mechanism(dp_sgd(0.1, 1.0), Everyone(40), Central(), 1.0, 50)

    def observe(progress: Progress) -> None:
        if progress.round == 3:
            raise KeyboardInterrupt

    cohorts = CohortSampler(mechanism.sampler, KEY, 7)
    outcome = run(mechanism, START, RowsEngine(world(1)), CountingGate(), KEY, cohorts, observe)
    assert (outcome.stopped, outcome.state.step, outcome.releases) == ("interrupted", 3, 3)


class SilentAt(RowsEngine):
    """Nobody answers one release."""

    silent = 3

    def gather(self, request: SumRequest) -> PartialSum:
        self.lost = 10**6 if request.release == self.silent else 0
        return super().gather(request)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_lost_release_is_as_one_that_nobody_answered(name: str) -> None:
    """A server was killed after it had charged release 3, and goes on from the state after release 2."""
    mechanism = Mechanism(OPTIMIZERS[name], FixedSize(40, 12), PLACEMENTS["central"], 0.5, 25)
    states: list[State] = []
    cohorts = CohortSampler(mechanism.sampler, KEY, 7)
    whole = CountingGate()
    arguments = (SilentAt(world(1)), whole, KEY, cohorts)
    run(mechanism, START, *arguments, observe=lambda progress: states.append(progress.state))
    engine, budget_gate = RowsEngine(world(1)), CountingGate()
    rest = (states[2], 25, engine, budget_gate, KEY, cohorts)
    outcome = advance(mechanism, *rest, first=4, unanswered=1)
    assert torch.equal(outcome.state.params, states[-1].params)
    assert (outcome.state.step, outcome.releases) == (25, 25)
    assert [asked.release for asked in engine.asks] == list(range(4, 25))
    assert budget_gate.charged == whole.charged[4:], "release 3 was charged before"


def test_capped_clients_send_noise_only() -> None:
    """With a cap of 2, a client gives data to its first two cohorts and stays a party after that."""
    sampler = FixedSize(6, 4)
    cohorts = CohortSampler(sampler, KEY, 3, max_participations=2)
    given = np.zeros(6, int)
    for release in range(12):
        shards = cohorts.draw(release)
        assert sum(shard.parties for shard in shards) == 4
        for shard in shards:
            given[shard.ids] += 1
    assert given.tolist() == [2] * 6


@pytest.mark.parametrize("sampler", [FixedSize(40, 6), Poisson(40, 0.15)])
def test_a_larger_first_cohort_is_drawn_divided_by_and_charged(sampler: Sampler) -> None:
    """DP-SRM's first release: b_0 = 3 b units, mean over b_0, noise 3 z, and the event of both."""
    rows, factor = world(1), 3.0
    method = DpSrm(Constant(1.0), math.inf, math.inf, 0.5, first_cohort=factor)
    engine, budget_gate = RowsEngine(rows), CountingGate()
    outcome = go(Mechanism(method, sampler, NoNoise(), 0.0, 1), engine, budget_gate)
    cohort = sampler.resized(factor).draw(KEY.generator("cohort", 0))
    assert sum(len(shard.ids) for shard in engine.asks[0].shards) == len(cohort)
    expected = START - (START - rows[cohort]).sum(0) / (factor * sampler.expected_size)
    torch.testing.assert_close(outcome.state.params, expected, rtol=1e-10, atol=1e-12)
    noisy = Mechanism(DpSrm(Constant(1.0), 1.0, 0.5, 0.5, factor), sampler, Central(), 0.7, 4)
    budget_gate = CountingGate()
    go(noisy, RowsEngine(rows), budget_gate)
    first, *later = budget_gate.charged
    assert first == sampler.resized(factor).event(0.7 * factor)
    assert later == [sampler.event(0.7)] * 3
    assert tuple(budget_gate.charged) == noisy.planned_events()
    assert (first.rate, later[0].rate) == (pytest.approx(0.45), pytest.approx(0.15))


def at_parties(kind: str, **numbers: Any) -> Placement:
    return PLACEMENT_TYPES[kind](**numbers)


@pytest.mark.parametrize("kind", ["local", "distributed"])
def test_parties_of_a_larger_cohort_share_its_noise(kind: str) -> None:
    """If clients add the noise, m and n_min follow the cohort; the number of silos is constant."""
    placement = at_parties(kind, shares=6, min_replies=4)
    method = DpSrm(Constant(1.0), 2.0, 0.5, 0.5, first_cohort=3.0)
    mechanism = Mechanism(method, FixedSize(40, 6), placement, 0.7, 3)
    engine = RowsEngine(world(1))
    assert go(mechanism, engine).state.step == 3
    owed = (0.7 * 3 * 2.0, 0.7 * 1.25, 0.7 * 1.25)
    split = [1.0] * 3 if kind == "local" else [12**0.5, 2.0, 2.0]
    for request, std, parts in zip(engine.asks, owed, split, strict=True):
        assert request.party_stds == (pytest.approx(std / parts),)
    assert [sum(c.parties for c in request.shards) for request in engine.asks] == [18, 6, 6]
    observer = mechanism.observer_event(2.1, 3.0)
    assert observer.noise_multiplier == pytest.approx(2.1 * (18**0.5 if kind == "local" else 1))
    assert observer.cohort == 18
    silos = at_parties(kind, shares=6, min_replies=6, per_unit=False)
    assert silos.resized(3.0) == silos


class Pairs:
    """A step is two releases; the state counts them."""

    def init(self, params: torch.Tensor) -> State:
        return State(params)

    def query(self, state: State) -> Query:
        return Query((state.params,), (SumBlock((Term(1.0),)),), releases=2 - state.step % 2)

    def update(self, state: State, answer: tuple[torch.Tensor, ...]) -> State:
        return state.advanced(state.params - 0.1 * answer[0], {})

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        return (PlannedRelease(),) * (rounds - rounds % 2)


@pytest.mark.parametrize(
    ("rounds", "limit", "stopped", "releases"),
    [(8, 99, "rounds", 8), (7, 99, "rounds", 6), (1, 99, "rounds", 0), (8, 5, "budget", 4)],
)
def test_a_step_of_two_releases_is_begun_only_where_both_can_be_made(
    rounds: int, limit: int, stopped: str, releases: int
) -> None:
    budget_gate = CountingGate(limit=limit)
    mechanism = Mechanism(Pairs(), Everyone(40), Central(), 1.0, rounds)
    outcome = go(mechanism, RowsEngine(world(1)), budget_gate)
    assert (outcome.stopped, outcome.releases, outcome.state.step) == (stopped, releases, releases)
    assert len(budget_gate.charged) == releases
    if limit == 99:
        assert tuple(budget_gate.charged) == mechanism.planned_events()


def test_silos_get_their_own_units_and_all_reply() -> None:
    cohorts = CohortSampler(Poisson(50, 0.2), KEY, 7, silo_starts=10 * np.arange(6))
    shards = cohorts.draw(0)
    assert [(shard.index, shard.home, shard.parties) for shard in shards] == [(s, s, 1) for s in range(5)]
    assert all((shard.ids // 10 == shard.home).all() for shard in shards)
    assert sum(len(shard.ids) for shard in shards) == len(Poisson(50, 0.2).draw(KEY.generator("cohort", 0)))


def test_the_only_silo_draws_its_own_units_under_the_federations_numbers() -> None:
    one = CohortSampler(Poisson(10, 0.5), KEY, 7, silo_starts=np.array([0, 10])).draw(3)
    starts = 10 * np.arange(6)
    fourth = CohortSampler(Poisson(10, 0.5), KEY, 7, silo_starts=starts, silo=4).draw(3)
    assert [(c.index, c.home, c.parties) for c in (*one, *fourth)] == [(0, 0, 1), (0, 4, 1)]
    assert fourth[0].ids.tolist() == [40 + i for i in one[0].ids.tolist()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_in_parts_equals_the_whole_run(name: str) -> None:
    mechanism = Mechanism(OPTIMIZERS[name], Poisson(40, 0.3), Central(), 0.5, 9)
    whole, engine, budget_gate = go(mechanism, RowsEngine(world(1))), RowsEngine(world(1)), CountingGate()
    state = mechanism.optimizer.init(START)
    for until in (2, 2, 7, 9):
        cohorts = CohortSampler(mechanism.sampler, KEY, 7)
        state = advance(mechanism, state, until, engine, budget_gate, KEY, cohorts).state
        assert state.step == until
    assert torch.equal(state.params, whole.state.params)
    assert tuple(budget_gate.charged) == mechanism.planned_events()


@pytest.mark.parametrize("sampler", [Poisson(500, 0.1), FixedSize(500, 31), Everyone(20)])
@pytest.mark.parametrize("shard", [1, 7, 1000])
def test_shards_have_each_unit_of_the_cohort_once(sampler: Sampler, shard: int) -> None:
    shards = CohortSampler(sampler, KEY, shard).draw(4)
    ids = np.concatenate([c.ids for c in shards])
    assert ids.tolist() == sampler.draw(KEY.generator("cohort", 4)).tolist()
    sizes = [len(c.ids) for c in shards]
    assert max(sizes) - min(sizes) <= 1
    # How many there are follows from the expected size, not from the drawn one.
    assert len(shards) == min(-(-round(sampler.expected_size) // shard), len(ids))


def test_the_server_view_is_unamplified_and_the_observers_is_not() -> None:
    mechanism = Mechanism(dp_sgd(0.1, 1.0), FixedSize(400, 9), Local(9), 2.0, 5)
    gate, observer = mechanism.event(2.0), mechanism.observer_event(2.0)
    assert (gate.sampling, gate.relation, gate.noise_multiplier) == ("none", "replace-one", 2.0)
    assert (observer.sampling, observer.noise_multiplier) == ("without-replacement", 6.0)


@pytest.mark.parametrize("kind", [pytest.param("local", marks=pytest.mark.slow), "distributed"])
def test_one_draw_for_many_parties_changes_neither_ledger_nor_law(kind: str) -> None:
    """Twelve parties in one chunk (one draw) or in twelve (twelve draws): the same events, and final
    models of the same law: KS two-sample over 20 coordinates of 150 runs, p > 1e-6, seeds fixed."""
    mechanism = Mechanism(dp_sgd(0.5, 1.0), FixedSize(40, 12), PLACEMENTS[kind], 0.5, 3)
    ends: dict[int, list[float]] = {1: [], 12: []}
    events = {}
    for shard, finals in ends.items():
        for seed in range(150):
            budget_gate, key = CountingGate(), Key.from_seed(1000 * shard + seed)
            cohorts = CohortSampler(
                mechanism.sampler, KEY, shard
            )  # the same cohorts, so only the noise differs
            engine = RowsEngine(world(1), key)
            finals.extend(run(mechanism, START, engine, budget_gate, key, cohorts).state.params.tolist())
            events[shard] = budget_gate.charged
    assert events[1] == events[12]
    assert stats.ks_2samp(ends[1], ends[12]).pvalue > 1e-6
    centre = np.mean(ends[1])
    wider = [centre + 1.5 * (value - centre) for value in ends[1]]
    assert stats.ks_2samp(wider, ends[12]).pvalue < 1e-6


def test_an_unseeded_key_is_used_by_one_run_only() -> None:
    """The same noise on the sums of two clip norms would reveal the vectors."""
    sampler, key, budget_gate = Poisson(40, 0.5), Key.fresh(), CountingGate()

    def go_on(key: Key, cohorts: Key, budget_gate: CountingGate) -> Outcome:
        mechanism = Mechanism(dp_sgd(0.1, 1.0), sampler, Central(), 1.0, 2)
        return run(
            mechanism, START, RowsEngine(world(1)), budget_gate, key, CohortSampler(sampler, cohorts, 7)
        )

    go_on(key, key, budget_gate)
    for again in ((key, Key.fresh()), (Key.fresh(), key)):
        unused = CountingGate()
        with pytest.raises(ArgumentError, match=r"The key was used before.*Key\.fresh"):
            go_on(*again, unused)
        assert not unused.charged
    one, other = (go_on(KEY, KEY, CountingGate()) for _ in range(2))
    assert torch.equal(one.state.params, other.state.params)


def test_children_of_an_unseeded_key_remember_what_they_drew() -> None:
    key = Key.fresh()
    key.child("silo", 0).once("release", 0)
    key.child("silo", 1).once("release", 0)
    key.once("release", 0)
    with pytest.raises(ArgumentError, match="'release 0' was already made"):
        key.child("silo", 0).once("release", 0)


def test_a_continued_run_uses_new_release_numbers() -> None:
    """After unanswered releases, the number of steps differs from the number of releases."""
    sampler, key = Poisson(40, 0.5), Key.fresh()
    mechanism = Mechanism(dp_sgd(0.1, 1.0), sampler, Central(), 1.0, 4)
    state = State(START, 1)
    budget_gate = CountingGate(charged=[mechanism.event(1.0)] * 3)
    end = advance(
        mechanism, state, 2, RowsEngine(world(1)), budget_gate, key, CohortSampler(sampler, key, 7), first=3
    )
    assert end.releases == 4
    with pytest.raises(ArgumentError, match=r"'release 3' was already made"):
        advance(
            mechanism,
            state,
            2,
            RowsEngine(world(1)),
            budget_gate,
            key,
            CohortSampler(sampler, key, 7),
            first=3,
        )


def test_cohorts_of_another_sampler_than_the_one_accounted_are_refused() -> None:
    mechanism = Mechanism(dp_sgd(0.1, 1.0), Poisson(40, 0.1), Central(), 1.0, 2)
    budget_gate = CountingGate()
    for sampler in (Everyone(40), Poisson(40, 0.2), FixedSize(40, 4)):
        with pytest.raises(ArgumentError, match=r"cohorts is .*be drawn by the mechanism's sampler"):
            run(mechanism, START, RowsEngine(world(1)), budget_gate, KEY, CohortSampler(sampler, KEY, 7))
    assert not budget_gate.charged


class Choosing:
    """Asks for less noise after a small answer."""

    def init(self, params: torch.Tensor) -> State:
        return State(params, 0, {"noise": torch.ones(())})

    def query(self, state: State) -> Query:
        noise = float(state.slots["noise"])
        return Query((state.params,), (SumBlock((Term(1.0),)),), relative_noise=noise)

    def update(self, state: State, answer: tuple[torch.Tensor, ...]) -> State:
        noise = torch.tensor(1.0 if float(answer[0].norm()) > 1e3 else 0.5)
        return state.advanced(state.params, {"noise": noise})

    def planned(self, rounds: int) -> tuple[PlannedRelease, ...]:
        return (PlannedRelease(),) * rounds


@pytest.mark.parametrize("ledgered", [False, True])
def test_an_accountant_is_a_budget_gate(tmp_path: Path, ledgered: bool) -> None:
    mechanism = Mechanism(dp_sgd(0.2, 1.0), Poisson(40, 0.5), Central(), 4.0, 50)
    whole, budget = mechanism.planned_events(), Budget(3.0, 1e-5)
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, {}) if ledgered else nullcontext() as ledger:
        accountant = Accountant(budget, ledger=ledger)
        cohorts = CohortSampler(mechanism.sampler, KEY, 7)
        outcome = run(mechanism, START, RowsEngine(world(1)), accountant, KEY, cohorts)
    afforded = most_rounds(whole[:1], budget)
    assert (outcome.stopped, outcome.releases, accountant.releases) == ("budget", afforded, afforded)
    assert 0.9 * 3 < accountant.spent().epsilon <= 3
    if ledgered:
        assert read(path).events == whole[:afforded]


def test_a_filter_is_a_budget_gate_for_noise_chosen_from_answers() -> None:
    mechanism = Mechanism(Choosing(), Everyone(40), Central(), 30.0, 100)
    budget = Budget(1.0, 1e-5, "zcdp")
    cohorts = CohortSampler(mechanism.sampler, KEY, 7)
    gate = Filter(budget)
    outcome = run(mechanism, START, RowsEngine(world(1)), gate, KEY, cohorts)
    assert outcome.stopped == "budget"
    more = Event(15.0, "none", "add-remove", population=40)
    assert gate.used <= 1 < gate.used + 1 / (2 * 15.0**2) / gate.limit
    assert not gate.affords([more])
    with pytest.raises(ArgumentError, match=r"of Choosing at step 1 is .* a privacy filter"):
        run(mechanism, START, RowsEngine(world(1)), Accountant(budget), KEY, cohorts)


def test_noise_chosen_from_answers_needs_a_filter() -> None:
    mechanism = Mechanism(Choosing(), Poisson(40, 0.5), Central(), 1.0, 4)
    budget_gate = CountingGate()
    cohorts = CohortSampler(mechanism.sampler, KEY, 7)
    with pytest.raises(ArgumentError, match=r"of Choosing at step 1 is \(0\.5, 1\.0\).* a privacy filter"):
        run(mechanism, START, RowsEngine(world(1)), budget_gate, KEY, cohorts)
    assert len(budget_gate.charged) == 1
    budget_gate = CountingGate()
    budget_gate.adaptive = True
    assert run(mechanism, START, RowsEngine(world(1)), budget_gate, KEY, cohorts).stopped == "rounds"
    assert [event.noise_multiplier for event in budget_gate.charged] == [1.0, 0.5, 0.5, 0.5]
