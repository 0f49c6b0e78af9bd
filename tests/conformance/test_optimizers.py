"""One table of optimizers, and what each of them must do. A new optimizer is one more row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from toys import CountingBooks, RowsEngine, noise_free, world

from fedpriv.clipping import sum_rows
from fedpriv.optimizers import (
    Adadp,
    AdaDps,
    Adam,
    AdaptiveClipping,
    Answer,
    Dp2,
    DpSrm,
    ExtraQuery,
    NormalisedStep,
    PdaDpmd,
    Polynomial,
    PrivateOptimizer,
    RmsProp,
    Scheduled,
    Sgd,
    State,
    adaptive_adp_sgd,
    adp_sgd,
    dp_adagrad,
    dp_adam,
    dp_rmsprop,
    dp_sgd,
    dp_yogi,
    dynamic,
    given,
    growing_mu,
    noise_decay,
    sensitivity_decay,
    square_root_noise,
)
from fedpriv.query import Query, SumBlock
from fedpriv.release import Placement
from fedpriv.rng import Key
from fedpriv.round import Cohorts, Setup, run
from fedpriv.sampling import Everyone, FixedSize, Poisson
from fedpriv.schedules import Constant, Geometric, PolynomialDecay, StepDecay, TimeDecay

ROUNDS, UNITS, DIMENSION, RATE = 26, 40, 20, 0.2
KEY = Key.from_seed(7)
START = torch.zeros(DIMENSION, dtype=torch.float64)

Rule = Callable[[torch.Tensor], torch.optim.Optimizer]


def sgd(momentum: float = 0.0) -> Rule:
    return lambda theta: torch.optim.SGD([theta], lr=RATE, momentum=momentum)


def adam() -> Rule:
    return lambda theta: torch.optim.Adam([theta], lr=RATE)


def rmsprop() -> Rule:
    return lambda theta: torch.optim.RMSprop([theta], lr=RATE, alpha=0.9)


def adagrad() -> Rule:
    return lambda theta: torch.optim.Adagrad([theta], lr=RATE, eps=1e-8)


@dataclass(frozen=True)
class Row:
    """How an optimizer is made from its (first) clip norm, and its non-private rule."""

    make: Callable[[float], PrivateOptimizer]
    plain: Rule | None


def dp2(rule: str, clip_norm: float, noise_first: bool = False) -> Dp2:
    rates = (Constant(RATE), Constant(RATE / 4))
    return Dp2(rule, *rates, clip_norm, clip_norm, 4, 3, epsilon=0.1, noise_std=0.01, noise_first=noise_first)


def public(theta: torch.Tensor, step: int) -> torch.Tensor:
    """The gradient of a public example that pulls theta to 2.1, as the units pull it to about 2."""
    return theta - 2.1


R_T = [1.5 - t / ROUNDS for t in range(ROUNDS)]
TABLE = {
    "dp-sgd": Row(lambda c: dp_sgd(RATE, c), sgd()),
    "dp-sgd with momentum": Row(lambda c: dp_sgd(RATE, c, momentum=0.5), sgd(0.5)),
    "dp-adam": Row(lambda c: dp_adam(RATE, c), adam()),
    "dp-rmsprop": Row(lambda c: dp_rmsprop(RATE, c), rmsprop()),
    "dp-adagrad": Row(lambda c: dp_adagrad(RATE, c), adagrad()),
    "dp-yogi": Row(lambda c: dp_yogi(RATE, c), None),  # torch has none; see test_first_order
    "adp-sgd": Row(lambda c: adp_sgd(RATE * 2, c, Polynomial(3.0, 0.1)), None),
    "adaptive adp-sgd": Row(lambda c: adaptive_adp_sgd(2.0, c, 1.0, 0.5), None),
    "adadp": Row(lambda c: Adadp(RATE, c, tolerance=0.5), None),
    "adadp with discards, then decay": Row(
        lambda c: Adadp(RATE, c, tolerance=0.5, discard=True, decay_after=10, epoch=3), None
    ),
    # Everyone leaves no room for a first cohort of another size: that is tested in test_round.
    "dp-srm": Row(lambda c: DpSrm(Constant(RATE), c, c, gamma=0.5), None),
    "dp-srm with its own step": Row(
        lambda c: DpSrm(NormalisedStep(0.5), c, c / 2, gamma=0.3, output_step=5), None
    ),
    **{
        f"dp2-{rule}": Row(lambda c, rule=rule: dp2(rule, c), None)  # type: ignore[misc]
        for rule in ("rmsprop", "adagrad", "yogi", "adam")
    },
    "dp2-rmsprop, noise first": Row(lambda c: dp2("rmsprop", c, noise_first=True), None),
    "dp2-rmsprop, extra query": Row(
        lambda c: ExtraQuery("rmsprop", Constant(RATE), Constant(RATE / 4), c, c, 5, epsilon=0.1), None
    ),
    "dynamic dp-srm": Row(
        lambda c: Scheduled(
            DpSrm(Constant(RATE), c, c, gamma=0.5), Geometric(1.0, 0.5, ROUNDS), Geometric(1.0, 0.6, ROUNDS)
        ),
        None,
    ),
    "dynamic dp-sgd": Row(lambda c: dynamic(Sgd(), RATE, c, ROUNDS, rho_c=2.0, rho_mu=3.0), sgd()),
    "dynamic dp-sgd with momentum": Row(lambda c: dynamic(Sgd(0.5), RATE, c, ROUNDS, 2.0, 3.0), sgd(0.5)),
    "growing mu": Row(lambda c: growing_mu(Sgd(), RATE, c, ROUNDS, 3.0), sgd()),
    "sensitivity decay": Row(lambda c: sensitivity_decay(Sgd(), RATE, c, ROUNDS, 2.0), sgd()),
    # Without a plain rule: where the noise follows C, C is given or C starts somewhere, it is finite.
    "sigma ~ sqrt(C)": Row(lambda c: square_root_noise(Sgd(), RATE, c, ROUNDS, 2.0), None),
    "given sequences": Row(lambda c: given(Sgd(), RATE, [c] * ROUNDS, R_T), None),
    "noise decay, linear": Row(
        lambda c: noise_decay(Sgd(), RATE, c, PolynomialDecay(0.2, 1.0, ROUNDS)), sgd()
    ),
    "noise decay, by steps, of dp-adam": Row(
        lambda c: noise_decay(Adam(), RATE, c, StepDecay(0.7, 2), epoch=4), adam()
    ),
    "noise decay, by time": Row(lambda c: noise_decay(Sgd(), RATE, c, TimeDecay(0.05)), sgd()),
    "adadps": Row(lambda c: AdaDps(Constant(RATE), c, public, epsilon=0.1), None),
    "pda-dpmd": Row(lambda c: PdaDpmd(Constant(RATE), c, public, ROUNDS), None),
    "dynamic dp-adam": Row(lambda c: dynamic(Adam(), RATE, c, ROUNDS, rho_c=2.0, rho_mu=3.0), adam()),
    "dynamic dp-rmsprop": Row(lambda c: dynamic(RmsProp(), RATE, c, ROUNDS, 2.0, 3.0), rmsprop()),
    "adaptive clipping": Row(lambda c: AdaptiveClipping(dp_sgd(RATE, c)), None),
    "adaptive clipping of dynamic dp-adam": Row(
        lambda c: AdaptiveClipping(dynamic(Adam(), RATE, c, ROUNDS, rho_mu=3.0)), None
    ),
}
SAMPLERS = {"poisson": Poisson(UNITS, 0.3), "fixed": FixedSize(UNITS, 12), "all": Everyone(UNITS)}
PLACEMENTS = {
    "none": Placement("none"),
    "central": Placement("central"),
    "local": Placement("local", shares=12),
    "distributed": Placement("distributed", shares=12, min_replies=10),
}

every = pytest.mark.parametrize("name", TABLE)


def answers(name: str, count: int, seed: int = 3) -> list[State]:
    """The states of an optimizer that is fed random answers."""
    optimizer = TABLE[name].make(1.0)
    generator = np.random.Generator(np.random.Philox(seed))
    states = [optimizer.init(START)]
    for _ in range(count):
        blocks = optimizer.query(states[-1]).blocks
        answer = tuple(
            torch.as_tensor(generator.standard_normal(DIMENSION if isinstance(block, SumBlock) else ()))
            for block in blocks
        )
        states.append(optimizer.update(states[-1], answer))
    return states


def tenths(query: Query) -> Answer:
    """An answer to the query, 0.1 everywhere."""
    return tuple(torch.full((DIMENSION,) if isinstance(b, SumBlock) else (), 0.1) for b in query.blocks)


def numbers(query: Query) -> list[object]:
    """Everything a query asks for but its points, comparable."""
    terms = [
        (block.share, term.clip_norm, term.weight, term.at, None if d is None else d.tolist())
        for block in query.blocks
        for term in (block.terms if isinstance(block, SumBlock) else (block.term,))
        for d in (term.divisor,)
    ]
    return [query.relative_noise, query.rate_factor, query.releases, *terms]


def end_of(setup: Setup, rows: torch.Tensor) -> torch.Tensor:
    """The parameters (d,) after the run."""
    cohorts = Cohorts(setup.sampler, KEY, 7)
    return run(setup, START, RowsEngine(rows), CountingBooks(), KEY, cohorts).state.params


@every
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_events_are_public_and_as_planned(name: str, sampler: str) -> None:
    setup = Setup(TABLE[name].make(1.0), SAMPLERS[sampler], Placement("central"), 0.8, ROUNDS)
    charged = []
    for seed in (1, 2):
        books = CountingBooks()
        engine = RowsEngine(world(seed) * 10**seed)
        run(setup, START, engine, books, Key.from_seed(seed), Cohorts(setup.sampler, Key.from_seed(seed), 7))
        charged.append(tuple(books.charged))
    assert charged[0] == charged[1] == setup.planned_events()
    assert len(charged[0]) == ROUNDS


@every
def test_the_state_goes_through_safetensors_and_on(name: str) -> None:
    optimizer = TABLE[name].make(1.0)
    for middle in answers(name, 9)[::3]:
        tensors = {key: tensor.contiguous() for key, tensor in middle.tensors().items()}
        restored = State.from_tensors(load(save(tensors)), middle.step)
        assert restored.step == middle.step
        assert restored.tensors().keys() == middle.tensors().keys()
        one, other = optimizer.query(middle), optimizer.query(restored)
        assert numbers(one) == numbers(other)
        ends = [optimizer.update(state, tenths(one)).tensors() for state in (middle, restored)]
        assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


@every
def test_updates_are_functions(name: str) -> None:
    """The same state and answer give the same next state, and neither is touched."""
    optimizer = TABLE[name].make(1.0)
    state = answers(name, 4)[-1]
    before = {key: tensor.clone() for key, tensor in state.tensors().items()}
    answer = tenths(optimizer.query(state))
    one, two = optimizer.update(state, answer), optimizer.update(state, answer)
    assert all(torch.equal(one.tensors()[key], two.tensors()[key]) for key in before)
    assert all(torch.equal(state.tensors()[key], before[key]) for key in before)
    assert one.step == state.step + 1


@every
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_examples_as_rows_are_clients_as_rows(name: str, sampler: str) -> None:
    """40 clients, or the examples of 5 silos of 8: the same matrix, the same trajectory under noise."""
    setup = Setup(TABLE[name].make(1.0), SAMPLERS[sampler], Placement("central"), 0.5, ROUNDS)
    ends = []
    for silo_size in (None, 8):
        cohorts = Cohorts(setup.sampler, KEY, 7, silo_size=silo_size)
        ends.append(run(setup, START, RowsEngine(world(1)), CountingBooks(), KEY, cohorts).state.params)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-8, atol=1e-10)


@every
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_runs_and_parties_owe_what_the_query_says(name: str, placement: str) -> None:
    scale = 0.0 if placement == "none" else 0.5
    setup = Setup(TABLE[name].make(1.0), FixedSize(UNITS, 12), PLACEMENTS[placement], scale, ROUNDS)
    engine = RowsEngine(world(1))
    outcome = run(setup, START, engine, CountingBooks(), KEY, Cohorts(setup.sampler, KEY, 5))
    assert (outcome.state.step, outcome.stopped) == (ROUNDS, "rounds")
    assert bool(torch.isfinite(outcome.state.params).all())
    for ask in engine.asks:
        owed = ask.query.noise_stds(scale * ask.query.relative_noise)
        assert ask.party_stds == PLACEMENTS[placement].resized(ask.query.rate_factor).party_stds(owed)
    # Some noise moves the trajectory; none repeats it.
    quiet = end_of(noise_free(setup.optimizer, ROUNDS, setup.sampler), world(1))
    assert torch.allclose(quiet, outcome.state.params, atol=1e-9) == (placement == "none")


@every
def test_it_converges_under_noise(name: str) -> None:
    rows = world(1)
    setup = Setup(TABLE[name].make(2.0), Everyone(UNITS), Placement("central"), 0.5, ROUNDS)
    end = end_of(setup, rows)
    assert float((end - rows.mean(0)).norm()) < 0.6 * float(rows.mean(0).norm())


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.plain])
def test_without_clipping_and_noise_it_is_the_textbook_rule(name: str) -> None:
    rows, plain = world(1), TABLE[name].plain
    assert plain is not None
    theta = START.clone().requires_grad_()
    reference = plain(theta)
    for _ in range(ROUNDS):
        theta.grad = theta.detach() - rows.mean(0)
        reference.step()
    setup = noise_free(TABLE[name].make(math.inf), ROUNDS)
    end = end_of(setup, rows)
    torch.testing.assert_close(end, theta.detach(), rtol=1e-9, atol=1e-10)


@every
@settings(max_examples=25, deadline=None)
@over(data=st.data())
def test_one_unit_moves_no_block_beyond_its_sensitivity(name: str, data: st.DataObject) -> None:
    """Adding or removing a unit moves a block by at most S, replacing one by at most 2 S, at any step."""
    state = answers(name, 6)[data.draw(st.integers(0, 6))]
    query = TABLE[name].make(1.0).query(state)
    seed, exponent = data.draw(st.integers(0, 2**32)), data.draw(st.integers(-12, 12))
    generator = np.random.Generator(np.random.Philox(seed))
    rows = torch.as_tensor(generator.standard_normal((6, DIMENSION)) * 10.0**exponent)
    broken = data.draw(st.sampled_from([None, math.nan, math.inf, 1e300]))
    if broken is not None:
        rows[5, 3] = broken
    neighbours = {"all": rows[:5], "fewer": rows[:4], "another": torch.cat([rows[:4], rows[5:]])}
    points = range(len(query.points))  # a unit's vector differs between them
    sums = {
        key: sum_rows([part.roll(point, dims=1) for point in points], query.blocks)
        for key, part in neighbours.items()
    }
    for j, block in enumerate(query.blocks):
        slack = block.sensitivity * 1e-9 + 1e-12
        added = float((sums["all"][j] - sums["fewer"][j]).norm())
        replaced = float((sums["all"][j] - sums["another"][j]).norm())
        assert added <= block.sensitivity + slack
        assert replaced <= 2 * block.sensitivity + slack


def test_the_table_names_every_constructor() -> None:
    """A new public optimizer has to come into the table above."""
    import fedpriv.optimizers as public

    makers = {dp_sgd, dp_adam, dp_rmsprop, dp_adagrad, dp_yogi}
    makers |= {adp_sgd, adaptive_adp_sgd, Adadp, Dp2, ExtraQuery, DpSrm}
    makers |= {AdaDps, PdaDpmd, noise_decay}
    makers |= {dynamic, growing_mu, sensitivity_decay, square_root_noise, given}
    parts = {"Answer", "FirstOrder", "Planned", "PrivateOptimizer", "State"}
    parts |= {"AdaGrad", "Adam", "AdaptiveClipping", "RmsProp", "Scheduled", "Sgd", "Yogi"}
    parts |= {"AdaptiveAdpSgd", "Polynomial", "Restarting", "predicted_gain"}
    parts |= {"Regularised", "Regulariser", "L2", "Nonconvex"}
    parts |= {"NormalisedStep", "draw_output_step", "default_tolerance", "scaled_error"}
    assert set(public.__all__) == {make.__name__ for make in makers} | parts


