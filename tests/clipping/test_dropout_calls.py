"""Dropout that layers of ``transformers`` draw by calling a function: each example has masks of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.hugging_face import IDS, QUIET, classifier, gpt2, opt, sizes_of
from helpers.plain_loop import clipped_sum_loop
from torch import Tensor, nn

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping.dropout import SeededDropout, example_seeds
from fedpriv.clipping.dropout_calls import calling, seeded_calls
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.config.schema import Config
from fedpriv.data.arrays import Arrays
from fedpriv.federated.client_update import OneGradient, clipped_sum
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.simulation import run
from fedpriv.tasks.task import Task

SIZES = sizes_of(width=16, layers=2, heads=2, vocabulary=50, positions=20)
GROUPED = {**IDS, "num_key_value_heads": 1}

Made = Callable[[float, str], nn.Module]
MADE: dict[str, Made] = {  # (the rate of attention, its code) -> a model in which attention alone drops
    "bert": lambda rate, code: classifier(
        "Bert",
        SIZES,
        **{**QUIET, "attention_probs_dropout_prob": rate},
        num_labels=3,
        attn_implementation=code,
    ),
    "gpt-2": lambda rate, code: gpt2(SIZES, attn_pdrop=rate, attn_implementation=code),
    "llama": lambda rate, code: classifier(
        "Llama", SIZES, **GROUPED, attention_dropout=rate, attn_implementation=code
    ),
    "opt": lambda rate, code: opt(SIZES, attention_dropout=rate, attn_implementation=code),
}
KINDS = pytest.mark.parametrize("kind", MADE)
CODES = pytest.mark.parametrize("code", ["sdpa", "eager"])


def task_of(kind: str, rate: float = 0.4, code: str = "sdpa") -> Task:
    """The model, moved from its initial values, where attention is nearly uniform."""
    torch.manual_seed(0)
    network = MADE[kind](rate, code)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return Task(network)


def examples(rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(3, 50, (rows, 9), generator=generator)
    x[1, 5:], x[4, 3:] = 0, 0
    return x, torch.arange(rows) % 3


def query_of(task: Task, clip: float = 0.5) -> Query:
    return Query((task.initial(np.random.default_rng(0)),), (SumBlock((Term(clip),)),))


@KINDS
@CODES
@pytest.mark.slow
def test_sums_equal_the_loop_with_the_same_masks_and_nothing_is_formed(kind: str, code: str) -> None:
    task, (x, y) = task_of(kind, code=code), examples()
    query, seeds = query_of(task), example_seeds(5, torch.arange(len(x)))
    (got,) = clipped_sum(OneGradient(), task, query, x, y, seeds=seeds)
    (wanted,) = clipped_sum_loop(OneGradient(), task, query, x, y, seeds=seeds)
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()
    (still,) = clipped_sum_loop(OneGradient(), task_of(kind, 0.0, code), query, x, y)
    assert (still - wanted).norm() > 0.01 * wanted.norm()
    coverage = clipper_of(task).coverage(task, query.points[0], x, y, with_dropout=True)
    assert coverage is not None
    assert coverage.formed == 0


@KINDS
@pytest.mark.slow
def test_fused_and_plain_attention_have_the_same_masks(kind: str) -> None:
    (x, y), tasks = examples(), (task_of(kind), task_of(kind, code="eager"))
    seeds = example_seeds(5, torch.arange(len(x)))
    query = query_of(tasks[0])
    one, other = (clipped_sum(OneGradient(), task, query, x, y, seeds=seeds)[0] for task in tasks)
    assert (one - other).norm() <= 1e-5 * one.norm()


@KINDS
@pytest.mark.slow
def test_an_examples_masks_do_not_depend_on_the_others(kind: str) -> None:
    task, (x, y) = task_of(kind), examples()
    query, seeds = query_of(task), example_seeds(5, torch.arange(len(x)))
    (whole,) = clipped_sum(OneGradient(), task, query, x, y, seeds=seeds)
    (rest,) = clipped_sum(OneGradient(), task, query, x[1:], y[1:], seeds=seeds[1:])
    (alone,) = clipped_sum(OneGradient(), task, query, x[:1], y[:1], seeds=seeds[:1])
    assert (whole - rest - alone).norm() <= 1e-5 * alone.norm()


@KINDS
def test_nothing_drops_in_evaluations_and_torchs_generator_is_not_used(kind: str) -> None:
    task, plain, (x, _) = task_of(kind), task_of(kind, 0.0), examples()
    params, before = task.initial(np.random.default_rng(0)), torch.get_rng_state()
    assert task.dropout.draws
    assert not plain.dropout.draws
    with task.dropout.seeded(example_seeds(1, torch.arange(len(x)))):
        drawn = task.outputs(params, x)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(task.outputs(params, x), plain.outputs(params, x))
    assert not torch.allclose(drawn, plain.outputs(params, x))
    assert not any(layer.training for layer in task.dropout.calling)


@pytest.mark.parametrize("case", ["plain", "mask", "causal", "groups", "hidden"])
def test_attention_drops_its_weights(case: str) -> None:
    """By hand: softmax of the scores, some weights dropped, times the values. A hidden place sees nothing."""
    torch.manual_seed(0)
    groups = 1 if case == "groups" else 4
    query, key, value = torch.randn(3, 4, 5, 8), torch.randn(3, groups, 5, 8), torch.randn(3, groups, 5, 6)
    mask = torch.ones(3, 1, 5, 5, dtype=torch.bool)
    mask = mask.tril() if case == "causal" else mask
    if case in ("mask", "hidden"):
        mask[1, :, :, 3:] = False
    if case == "hidden":
        mask[2, :, 0] = False
    more = {"is_causal": True} if case == "causal" else {"enable_gqa": True} if case == "groups" else {}
    given = mask if case in ("mask", "hidden") else None
    dropout = SeededDropout(nn.Sequential())
    with dropout.seeded(example_seeds(1, torch.arange(3))):
        kept = dropout.kept(0.75, (3, 4, 5, 5))
        dropout.begin()
        with seeded_calls((), dropout.dropped):
            got = F.scaled_dot_product_attention(query, key, value, given, dropout_p=0.25, scale=0.3, **more)
            whole = F.scaled_dot_product_attention(query, key, value, given, scale=0.3, **more)
    weights = (0.3 * query @ key.mT).masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0)
    assert torch.allclose(got, (weights * kept / 0.75) @ value, atol=1e-5)
    assert torch.allclose(whole, weights @ value, atol=1e-5)


@pytest.mark.parametrize("inplace", [False, True])
def test_functional_dropout_drops_by_seeds(inplace: bool) -> None:
    x = torch.ones(3, 50)
    dropout = SeededDropout(nn.Sequential())
    with dropout.seeded(example_seeds(1, torch.arange(3))), seeded_calls((), dropout.dropped):
        assert torch.equal(F.dropout(x, 0.25, training=False), x)
        got = F.dropout(x, 0.25, True, inplace)
        dropout.begin()
        assert torch.equal(got, dropout.kept(0.75, (3, 50)) / 0.75)
    assert (got is x) == inplace


def test_layers_that_draw_otherwise_stay_in_evaluation_mode() -> None:
    assert len(calling(MADE["bert"](0.1, "sdpa"))) == 2
    assert not calling(MADE["bert"](0.1, "flex_attention"))
    assert len(calling(opt(SIZES, dropout=0.1))) == 3  # two layers, and the decoder
    assert len(calling(opt(SIZES, dropout=0.1, layerdrop=0.1))) == 2


def skipping() -> nn.Module:
    return opt(SIZES, attention_dropout=0.1, layerdrop=0.2)


def dropping() -> nn.Module:
    return opt(SIZES, attention_dropout=0.1, dropout=0.2)


class Functional(nn.Module):
    """Attention that draws by seeds, and a functional dropout of one's own that would be inactive."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dropping()

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.inner(x), 0.5, self.training)


def texts() -> Arrays:
    x, y = examples(200)
    return Arrays("texts", x.numpy(), y.numpy(), x[:40].numpy(), y[:40].numpy(), classes=3, tokens=(50,))


def settings(model: str) -> Config:
    values = {"dataset": f"{__name__}:texts", "model": f"{__name__}:{model}", "clients": 200}
    values |= {"sampling-rate": 0.05, "rounds": 2, "epsilon": 8.0, "engine": "in-process", "seed": 1}
    return Config.parse(values)


@pytest.mark.slow
def test_a_run_accepts_what_is_drawn_for_each_example() -> None:
    assert run.simulate(settings("dropping")).metrics[-1]["round"] == 2


def test_a_run_refuses_other_draws_and_names_the_settings() -> None:
    with pytest.raises(ArgumentError, match=r"config set to 0 .*: attention_dropout=0\.1, layerdrop=0\.2\)"):
        run.check(settings("skipping"))
    with pytest.raises(ArgumentError, match=r"draw by nn\.Dropout layers alone"):
        run.check(settings("Functional"))
