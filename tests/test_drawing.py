"""Models whose layers draw in training: fresh for each example, the same at all points, given back after."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpriv import config, simulate
from fedpriv._check import ArgumentError
from fedpriv.clients import LocalSteps, OneGradient, clipped_sum
from fedpriv.clipping import sum_rows
from fedpriv.clipping.bookkeeping import _gradients_of_each
from fedpriv.node import client_side
from fedpriv.query import Query, SumBlock, Term
from fedpriv.round import Ask, Chunk
from fedpriv.tasks import Task

WIDTH = 400


def net(rate: float = 0.5) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Dropout(rate), nn.Linear(32, 3))


class Bare(nn.Module):
    """No kind that book-keeping knows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop = nn.Parameter(torch.ones(6, 8)), nn.Dropout(0.5)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.drop(torch.tanh(x @ self.first)))
        return outputs


class Shown(nn.Module):
    """Its gradient is twice what dropout of a half leaves of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.line = nn.Dropout(0.5), nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.line(self.drop(x))
        return outputs


class ByItself(nn.Module):
    """Draws without a layer that does, and says so."""

    draws = True

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.line(nn.functional.dropout(x, 0.5, self.training))
        return outputs


class InOneRow(nn.Module):
    """Mixes examples, but in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.line = nn.Dropout(0.1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x - x.mean(0)
        outputs: Tensor = self.line(self.drop(x))
        return outputs


def a_query(task: Task, *at: float, clip: float = 0.3) -> Query:
    point = task.initial(np.random.default_rng(0))
    return Query((point,) * len(at), (SumBlock((Term(clip, at=at),)),))


def examples(count: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 6, generator=generator), torch.arange(count) % 3


def masks(module: nn.Module, count: int, **how: object) -> Tensor:
    """What dropout left for the units of one sum, as numbers of their examples: (WIDTH,)."""
    task = Task(module, lambda outputs, y: outputs[:, 0])
    query = a_query(task, 1.0, clip=float("inf"))
    (total,) = clipped_sum(
        OneGradient(), task, query, torch.ones(count, WIDTH), torch.zeros(count).long(), **how
    )
    return total / 2


@pytest.mark.parametrize("model", [net, Bare])
def test_a_seed_fixes_what_is_drawn_and_none_draws_anew(model):
    task, (x, y) = Task(model()), examples()
    query = a_query(task, 1.0)
    one, again, other = (
        clipped_sum(OneGradient(), task, query, x, y, seed=seed)[0] for seed in (3, 3, None)
    )
    assert torch.equal(one, again)
    assert (one - other).norm() > 0.1 * one.norm()
    assert one.norm() <= len(x) * 0.3


def test_book_keeping_is_exact_for_what_is_drawn():
    task, (x, y) = Task(net()), examples()
    query = a_query(task, 1.0)
    (total,) = clipped_sum(OneGradient(), task, query, x, y, seed=11)
    assert task.book.layers
    assert all(task.book._tried.values())
    with task.drawing.seeded(11, x.device):
        rows = _gradients_of_each(task, query.points[0], x, y)
    (wanted,) = sum_rows([rows], query.blocks)
    assert (rows.norm(dim=1) > 0.3).any()
    assert (total - wanted).norm() <= 1e-5 * wanted.norm()
    still = task.gradients(query.points[0], x, y)  # of the same model in evaluation mode
    assert (still - rows).norm() > 0.1 * rows.norm()


@pytest.mark.parametrize("model", [Shown, ByItself])
@pytest.mark.parametrize("how", [{}, {"chunk": 1}, {"chunk": 3}], ids=str)
def test_each_example_draws_its_own(model, how):
    both = masks(model(), 2, **how)
    assert set(both.tolist()) == {0.0, 1.0, 2.0}
    assert abs((both == 1).double().mean() - 0.5) < 5 * 0.5 / WIDTH**0.5  # independent: half of them differ
    many = masks(model(), 64, **how)
    assert abs(many.mean() - 32) < 5 * (16 / WIDTH) ** 0.5
    assert abs(many.var() - 16) < 5 * 16 * (2 / WIDTH) ** 0.5  # 1,024 if all were alike


def test_each_answer_draws_its_own():
    one, other = masks(Shown(), 1), masks(Shown(), 1)
    assert 0.3 < (one != other).double().mean() < 0.7


@pytest.mark.parametrize("model", [net, Bare])
@pytest.mark.parametrize("work", [OneGradient(), LocalSteps(3, 0.1)], ids=["gradient", "local-steps"])
@pytest.mark.parametrize("owned", [False, True], ids=["examples", "clients"])
def test_at_two_points_an_example_draws_the_same(model, work, owned):
    task, (x, y) = Task(model()), examples()
    owner, units = (torch.arange(len(x)) // 4, 10) if owned else (None, None)
    (difference,) = clipped_sum(work, task, a_query(task, 1.0, -1.0), x, y, owner, units)
    (one,) = clipped_sum(work, task, a_query(task, 1.0), x, y, owner, units)
    assert float(difference.norm()) <= 1e-5 * float(one.norm())


def test_local_steps_draw_anew_at_each():
    task = Task(Shown(), lambda outputs, y: outputs[:, 0])
    query = a_query(task, 1.0, clip=float("inf"))
    x, y, owner = torch.ones(1, WIDTH), torch.zeros(1).long(), torch.zeros(1).long()
    (total,) = clipped_sum(LocalSteps(2, 1.0), task, query, x, y, owner, 1)
    steps = (total / 2).round(decimals=3)
    assert set(steps.tolist()) == {0.0, 1.0, 2.0}


def test_generators_are_given_back_and_evaluation_draws_nothing():
    task, (x, y) = Task(net()), examples()
    before = torch.get_rng_state()
    clipped_sum(OneGradient(), task, a_query(task, 1.0), x, y)
    assert torch.equal(before, torch.get_rng_state())
    params = task.initial(np.random.default_rng(0))
    assert task.evaluate(params, x, y) == task.evaluate(params, x, y)
    assert not task.module.training
    assert torch.equal(task.gradients(params, x, y), task.gradients(params, x, y))


def test_the_mode_is_left_after_an_error():
    task, (x, y) = Task(net()), examples()
    with pytest.raises(ArgumentError):
        clipped_sum(OneGradient(), task, Query((torch.zeros(3),), (SumBlock((Term(1.0),)),)), x, y)
    assert not task.module.training


def test_what_mixes_examples_in_training_alone_is_found():
    task, (x, y) = Task(InOneRow()), examples()
    query = a_query(task, 1.0, clip=float("inf"))
    (total,) = clipped_sum(OneGradient(), task, query, x, y)
    assert not all(task.book._tried.values())
    weight = total[: 3 * 6]
    assert float(weight.abs().max()) == 0  # alone, each example is its own mean
    assert float(total[3 * 6 :].norm()) > 0


def test_models_that_draw_nothing_are_as_they_were():
    assert not Task(net(rate=0.0)).drawing.draws
    assert not Task("cnn").drawing.draws
    assert Task(nn.Sequential(nn.Linear(6, 3), nn.RReLU())).drawing.draws


def test_a_model_that_draws_unsaid_is_refused():
    class Unsaid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Parameter(torch.ones(6, 8)), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = x @ self.first
            outputs: Tensor = self.last(hidden + torch.randn_like(hidden))
            return outputs

    task, (x, y) = Task(Unsaid()), examples()
    with pytest.raises(RuntimeError, match="random"):
        clipped_sum(OneGradient(), task, a_query(task, 1.0), x, y)


def dropping(inputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))


OWN = {"dataset": "infinite-digits", "clients": 2000, "sampling-rate": 0.05, "rounds": 4, "epsilon": 8.0}


def a_side(seed: int):
    return client_side({**OWN, "model": f"{__name__}:dropping", "seed": seed, "engine": "in-process"})


def test_parts_of_a_seeded_run_do_not_depend_on_who_computes_them():
    one, other = a_side(5), a_side(5)
    point = one.task.initial(np.random.default_rng(0))
    query = Query((point,), (SumBlock((Term(1.0),)),))
    chunks = [Chunk(i, np.arange(20 * i, 20 * i + 20), parties=20) for i in range(3)]
    (whole,) = one.answer(Ask(query, 2, tuple(chunks))).sums
    (again,) = one.answer(Ask(query, 2, tuple(chunks))).sums
    (last,) = other.answer(Ask(query, 2, (chunks[2],))).sums
    (first,) = other.answer(Ask(query, 2, tuple(chunks[:2]))).sums
    assert torch.equal(whole, again)
    assert torch.equal(whole, first + last)
    (later,) = one.answer(Ask(query, 3, tuple(chunks))).sums
    assert not torch.equal(whole, later)
    (unlike,) = a_side(6).answer(Ask(query, 2, tuple(chunks))).sums
    assert not torch.equal(whole, unlike)


def test_a_run_with_dropout_learns_and_repeats():
    values = {**OWN, "model": f"{__name__}:dropping", "engine": "in-process", "seed": 3, "epsilon": 30.0}
    values |= {"rounds": 40, "sampling-rate": 0.2, "evaluate-every": 40, "learning-rate": 1.0}
    one, again = (simulate.simulate(config.Config.parse(values)) for _ in range(2))
    assert torch.equal(one.params, again.params)
    assert one.metrics[-1]["accuracy"] > 0.4
