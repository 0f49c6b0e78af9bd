"""What each optimizer of the table must do on each target. A new optimizer is one more row."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet
from conformance.table import HUGE, ROUNDS, table
from conformance.targets import TARGETS, UNITS, Target
from helpers.toys import CountingGate, noise_free
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from fedpriv.federated.cohorts import CohortSampler
from fedpriv.federated.loop import Mechanism, Outcome, advance, run
from fedpriv.mechanism.placement import PLACEMENTS, Central, PlacementContext
from fedpriv.mechanism.query import IndicatorBlock, NoisyAnswer, Query, SumBlock, Term
from fedpriv.mechanism.sampling import SAMPLERS as SAMPLER_KINDS
from fedpriv.mechanism.sampling import (
    CyclicSettings,
    Everyone,
    FixedSize,
    Sampler,
    SamplerContext,
    SamplerKind,
)
from fedpriv.optimizers import PrivateOptimizer, State
from fedpriv.optimizers.registry import METHODS
from fedpriv.rng import Key

KEY = Key.from_seed(7)
TABLES = {name: table(target.public) for name, target in TARGETS.items()}
NAMES = list(TABLES["quadratic"])


# A run resolves the default. Noise is independent, since only some optimizers allow correlated noise.
OWN = {"cyclic-poisson": CyclicSettings(noise_bands=1)}


def sampler_of(kind: SamplerKind) -> Sampler:
    """Over all units, of which it draws a third where it draws some."""
    rate = 1 / 3 if kind.sampling.samples else 1.0
    own = OWN.get(kind.name, kind.settings())
    return kind.build(SamplerContext(UNITS, rate, kind.sampling.relation, own=own))


SAMPLERS = {name: sampler_of(kind) for name, kind in SAMPLER_KINDS.items()}
PLACED_BY = {
    name: kind.configured(
        PlacementContext(FixedSize(UNITS, 8), min_replies=6 if kind.at_parties else 0, own=kind.settings())
    )
    for name, kind in PLACEMENTS.items()
}
# How much of the first mean loss may be left under noise.
LEFT = {"quadratic": 0.75, "logistic": 0.85, "network": 0.85}

every = pytest.mark.parametrize("name", NAMES)


def made(target: str, name: str, clip_norm: float = 1.0) -> PrivateOptimizer:
    return TABLES[target][name].make(clip_norm)


def outcome_of(mechanism: Mechanism, target: Target, seed: int = 1, silo_size: int | None = None) -> Outcome:
    """A run on the target's data of this seed."""
    starts = None if silo_size is None else np.arange(0, mechanism.sampler.population + 1, silo_size)
    cohorts = CohortSampler(mechanism.sampler, KEY, 12, silo_starts=starts)
    return run(mechanism, target.start, target.engine(target.data(seed)), CountingGate(), KEY, cohorts)


@functools.cache
def answers(target: str, name: str, count: int) -> list[State]:
    """The states of an optimizer that is fed random answers."""
    optimizer = made(target, name)
    generator = np.random.Generator(np.random.Philox(3))
    states = [optimizer.init(TARGETS[target].start)]
    for _ in range(count):
        answer = tuple(
            torch.as_tensor(generator.standard_normal(states[0].params.shape if sums else ()))
            for sums in (isinstance(block, SumBlock) for block in optimizer.query(states[-1]).blocks)
        )
        states.append(optimizer.update(states[-1], answer))
    return states


def kind(name: str) -> frozenset[object]:
    """What an optimizer's queries ask for, numbers left out: the part of it that a model's sums depend on."""
    return frozenset(
        (
            len(query.points),
            *(
                (type(block), term.at, term.divisor is None, term.needs_rows, term.squared, term.per_layer)
                for block, term in terms_of(query)
            ),
        )
        for query in map(made("quadratic", name).query, answers("quadratic", name, ROUNDS - 1))
    )


def terms_of(query: Query) -> list[tuple[SumBlock | IndicatorBlock, Term]]:
    return [(b, term) for b in query.blocks for term in (b.terms if isinstance(b, SumBlock) else (b.term,))]


# One optimizer of each kind of query runs on every target by default, the others on the quadratic.
FIRST_OF_KIND = set({kind(name): name for name in reversed(NAMES)}.values())


def cell(name: str, target: str, *more: str, usual: bool = True) -> ParameterSet:
    quick = target == "quadratic" or (usual and name in FIRST_OF_KIND)
    return pytest.param(name, target, *more, marks=() if quick else pytest.mark.slow)


def across(axis: str, choices: Iterable[str], usual: str) -> pytest.MarkDecorator:
    """Every optimizer on every target with each choice; on other targets than the quadratic all but the usual
    choice are slow."""
    cells = [
        cell(name, target, choice, usual=choice == usual)
        for name in NAMES
        for target in TARGETS
        for choice in choices
    ]
    return pytest.mark.parametrize(("name", "target", axis), cells)


everywhere = pytest.mark.parametrize(("name", "target"), [cell(n, t) for n in NAMES for t in TARGETS])


def tenths(query: Query) -> NoisyAnswer:
    """An answer to the query, 0.1 everywhere."""
    return tuple(
        torch.full_like(query.points[0], 0.1) if isinstance(b, SumBlock) else torch.tensor(0.1)
        for b in query.blocks
    )


def numbers(query: Query) -> list[object]:
    """Everything a query asks for but its points, comparable."""
    terms = [
        (
            block.share,
            term.clip_norm,
            term.weight,
            term.at,
            term.squared,
            *(v if v is None else v.tolist() for v in vectors),
        )
        for block, term in terms_of(query)
        for vectors in ((term.divisor, term.offset),)
    ]
    return [query.relative_noise, query.rate_factor, query.releases, *terms]


@across("sampler", SAMPLERS, "poisson")
def test_events_are_public_and_as_planned(name: str, target: str, sampler: str) -> None:
    mechanism = Mechanism(made(target, name), SAMPLERS[sampler], Central(), 0.8, ROUNDS)
    charged = []
    for seed in (1, 2):
        world, budget_gate = TARGETS[target], CountingGate()
        x, y = world.data(seed)
        key = Key.from_seed(seed)
        cohorts = CohortSampler(mechanism.sampler, key, 12)
        run(mechanism, world.start, world.engine((10**seed * x, y)), budget_gate, key, cohorts)
        charged.append(tuple(budget_gate.charged))
    assert charged[0] == charged[1] == mechanism.planned_events()
    assert len(charged[0]) == ROUNDS


@every
def test_the_state_goes_through_safetensors_and_on(name: str) -> None:
    optimizer = made("quadratic", name)
    for middle in answers("quadratic", name, 9)[::3]:
        restored = stored_and_read(middle)
        assert restored.step == middle.step
        assert restored.tensors().keys() == middle.tensors().keys()
        one, other = optimizer.query(middle), optimizer.query(restored)
        assert numbers(one) == numbers(other)
        ends = [optimizer.update(state, tenths(one)).tensors() for state in (middle, restored)]
        assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def stored_and_read(state: State) -> State:
    tensors = {key: tensor.contiguous() for key, tensor in state.tensors().items()}
    step = json.loads(json.dumps({"step": state.step}))["step"]
    return State.from_tensors(load(save(tensors)), step)


@everywhere
def test_a_run_that_is_stored_half_way_ends_as_one_that_is_not(name: str, target: str) -> None:
    mechanism = Mechanism(made(target, name), SAMPLERS["poisson"], Central(), 0.5, ROUNDS)
    whole, world, half = outcome_of(mechanism, TARGETS[target]), TARGETS[target], ROUNDS // 2 + 1
    engine, budget_gate = world.engine(world.data(1)), CountingGate()
    state = mechanism.optimizer.init(world.start)
    for until in (half, ROUNDS):
        cohorts = CohortSampler(mechanism.sampler, KEY, 12)
        state = advance(mechanism, stored_and_read(state), until, engine, budget_gate, KEY, cohorts).state
        if state.step < until:  # a step of two releases is not begun for one
            state = advance(mechanism, state, until + 1, engine, budget_gate, KEY, cohorts).state
    assert torch.equal(state.params, whole.state.params)


@every
def test_updates_are_functions(name: str) -> None:
    """The same state and answer give the same next state, and neither is touched."""
    optimizer = made("quadratic", name)
    state = answers("quadratic", name, 4)[-1]
    before = {key: tensor.clone() for key, tensor in state.tensors().items()}
    answer = tenths(optimizer.query(state))
    one, two = optimizer.update(state, answer), optimizer.update(state, answer)
    assert all(torch.equal(one.tensors()[key], two.tensors()[key]) for key in before)
    assert all(torch.equal(state.tensors()[key], before[key]) for key in before)
    assert one.step == state.step + 1


@across("sampler", SAMPLERS, "poisson")
def test_examples_as_rows_are_clients_as_rows(name: str, target: str, sampler: str) -> None:
    """24 clients, or the examples of 3 silos of 8: the same data, the same trajectory under noise."""
    mechanism = Mechanism(made(target, name), SAMPLERS[sampler], Central(), 0.5, ROUNDS)
    ends = [outcome_of(mechanism, TARGETS[target], silo_size=size).state.params for size in (None, 8)]
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-8, atol=1e-10)


@across("placement", PLACEMENTS, "distributed")
def test_every_placement_runs_and_parties_add_the_querys_noise(
    name: str, target: str, placement: str
) -> None:
    scale = 0.5 if PLACEMENTS[placement].adds_noise else 0.0
    mechanism = Mechanism(made(target, name), FixedSize(UNITS, 8), PLACED_BY[placement], scale, ROUNDS)
    world, budget_gate = TARGETS[target], CountingGate()
    engine = world.engine(world.data(1))
    outcome = run(mechanism, world.start, engine, budget_gate, KEY, CohortSampler(mechanism.sampler, KEY, 8))
    assert (outcome.state.step, outcome.stopped) == (ROUNDS, "rounds")
    assert bool(torch.isfinite(outcome.state.params).all())
    for request in engine.asks:
        owed = request.query.noise_stds(scale * request.query.relative_noise)
        assert request.party_stds == PLACED_BY[placement].resized(request.query.rate_factor).party_stds(owed)
    if target == "quadratic":  # some noise moves the trajectory; none repeats it
        quiet = outcome_of(noise_free(mechanism.optimizer, ROUNDS, mechanism.sampler), world).state.params
        assert torch.allclose(quiet, outcome.state.params, atol=1e-9) != PLACEMENTS[placement].adds_noise


@everywhere
def test_it_converges_under_noise(name: str, target: str) -> None:
    world = TARGETS[target]
    mechanism = Mechanism(made(target, name, 2.0), Everyone(UNITS), Central(), 0.5, ROUNDS)
    data = world.data(1)
    end = outcome_of(mechanism, world).state.params
    assert float(world.loss(data, end)) < LEFT[target] * float(world.loss(data, world.start))


@everywhere
def test_without_clipping_and_noise_it_is_the_textbook_rule(name: str, target: str) -> None:
    world, row = TARGETS[target], TABLES[target][name]
    data = world.data(1)

    def gradient(theta: torch.Tensor, release: int) -> torch.Tensor:
        slope = world.gradient(data, theta)
        return slope if row.regulariser is None else slope + row.regulariser.gradient(theta)

    expected = row.plain(gradient, world.start, ROUNDS)
    mechanism = noise_free(row.make(row.unclipped), ROUNDS, Everyone(UNITS))
    end = outcome_of(mechanism, world).state.params
    assert not torch.allclose(end, world.start, atol=0.1)
    torch.testing.assert_close(end, expected, rtol=1e-8, atol=1e-9)


BROKEN = [None, math.nan, math.inf, 1e300]


@everywhere
@settings(max_examples=8)
@over(data=st.data())
def test_one_unit_moves_no_block_beyond_its_sensitivity(name: str, target: str, data: st.DataObject) -> None:
    """Adding or removing any unit moves a block by at most S, replacing one by at most 2 S, at any step."""
    world = TARGETS[target]
    state = answers(target, name, 6)[data.draw(st.integers(0, 6))]
    query = made(target, name).query(state)
    x, y = world.data(data.draw(st.integers(0, 2**32)))
    x = x[:6] * 10.0 ** data.draw(st.integers(-12, 12))
    broken = data.draw(st.sampled_from(BROKEN))
    if broken is not None:
        x[data.draw(st.integers(0, 5))].flatten()[3] = broken
    one, other = data.draw(st.permutations(range(6)))[:2]
    engine = world.engine((x, y[:6]))
    rest = [unit for unit in range(6) if unit not in (one, other)]
    sums = {
        key: engine.sums(query, torch.tensor(sorted(units)))
        for key, units in {"rest": rest, "one": [*rest, one], "other": [*rest, other]}.items()
    }
    for j, block in enumerate(query.blocks):
        slack = block.sensitivity * 1e-9 + 1e-12
        for added in ("one", "other"):
            assert float((sums[added][j] - sums["rest"][j]).norm()) <= block.sensitivity + slack
        assert float((sums["one"][j] - sums["other"][j]).norm()) <= 2 * block.sensitivity + slack


def test_the_table_has_a_row_for_every_method() -> None:
    """A new optimizer needs a row here; those in ``like`` are another method's rule under another sampler."""
    like = {"dp-gd": "dp-sgd", "rrpsgd": "dp-sgd"}
    rows = {re.split(", | with | of ", name)[0] for name in TABLES["quadratic"]}
    assert {like.get(name, name) for name in METHODS} <= rows


def test_clip_norms_of_the_table_clip_nothing_that_they_should_not() -> None:
    rows = TABLES["quadratic"].values()
    assert all(row.unclipped in (math.inf, HUGE) for row in rows)
    assert sum(row.unclipped == HUGE for row in rows) <= 4
