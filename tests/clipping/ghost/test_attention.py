"""Attention: the output equals torch's, and book-keeping, rows and the plain loop agree."""

import copy

import pytest
import torch
from helpers.clipping_paths import assert_all_ways_agree, noise, one_point_query, two_point_query
from torch import nn

from fedpriv.clipping import per_example, sum_gradients
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.ghost.layers import make_batched
from fedpriv.clipping.ghost.layers.attention import PlainAttention
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.task import Task

SETTINGS = {
    "self": {},
    "no bias": {"bias": False},
    "steps first": {"batch_first": False},
    "cross": {"other": 3},
    "cross, steps first": {"other": 3, "batch_first": False},
    "cross, no bias": {"other": 6, "bias": False},
    "widths": {"other": 3, "kdim": 6, "vdim": 2},
    "key alone": {"other": 4, "split": True},
    "weights": {"need_weights": True},
    "heads": {"need_weights": True, "average_attn_weights": False},
    "masked": {"mask": True},
    "masked weights": {"mask": True, "need_weights": True},
    "masked and padded": {"mask": True, "padded": True},
    "padded": {"padded": True, "other": 3},
    "causal": {"mask": True, "is_causal": True},
}


class Attending(nn.Module):
    """Self-attention over 4 places, or attention to ``other`` places of another width."""

    def __init__(self, other=0, mask=False, padded=False, split=False, batch_first=True, **how):
        super().__init__()
        self.call = {key: how.pop(key) for key in list(how) if key in KEYS} | {
            "need_weights": how.pop("need_weights", False)
        }
        self.other, self.split, self.mask, self.padded, self.first = other, split, mask, padded, batch_first
        self.widths = how.get("kdim", 4), how.get("vdim", 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, **how)
        self.last = nn.Linear(16 if not self.call["need_weights"] else 32, 3)

    def given(self, x):
        x = x.view(-1, 4, 4)
        if not self.other:
            return [x if self.first else x.transpose(0, 1)] * 3
        spread = torch.cat([x.flatten(1)] * 3, 1)
        key, value = (
            torch.sin(spread[:, : self.other * width] + shift).view(-1, self.other, width)
            for width, shift in zip(self.widths, (0, int(self.split)), strict=True)
        )
        if self.widths == (4, 4) and not self.split:
            value = key
        given = [x, key, value]
        return given if self.first else [part.transpose(0, 1) for part in given]

    def masks(self, x):
        masks = {}
        if self.mask:
            masks["attn_mask"] = torch.ones(4, 4, dtype=torch.bool, device=x.device).triu(1)
        if self.padded:
            places = self.other or 4
            masks["key_padding_mask"] = (torch.arange(places) == places - 1).expand(len(x), places)
        return masks

    def forward(self, x):
        found, weights = self.attention(*self.given(x), **self.masks(x), **self.call)
        found = (found if self.first else found.transpose(0, 1)).flatten(1)
        if weights is not None:
            weights = weights.mean(1) if weights.dim() == 4 else weights
            found = torch.cat([found, weights.flatten(1)], 1)
        return self.last(found)


KEYS = {"average_attn_weights", "is_causal"}
SET = pytest.mark.parametrize("setting", SETTINGS)


def examples(dtype=torch.float64, n=6):
    return noise(n, 16, seed=1).to(dtype), torch.arange(n) % 3


@SET
def test_the_output_equals_torchs(setting):
    module = Attending(**SETTINGS[setting]).double().eval()
    plain = copy.deepcopy(module)
    make_batched(plain)
    assert type(plain.attention) is PlainAttention
    x, _ = examples()
    torch.testing.assert_close(plain(x), module(x))
    with torch.no_grad():
        torch.testing.assert_close(plain(x), module(x))


@SET
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.slow
def test_all_ways_agree(setting, dtype, monkeypatch):
    task, (x, y) = Task(Attending(**SETTINGS[setting])), examples(dtype)
    query = one_point_query(task, x, y, dtype)
    monkeypatch.setattr(per_example, "_by_rows", lambda *a, **k: pytest.fail("rows were formed"))
    assert_all_ways_agree(task, query, x, y, 1e-10 if dtype == torch.float64 else 1e-5)
    plan = clipper_of(task).coverage(task, query.points[0], x, y)
    assert not plan.remaining


@SET
@pytest.mark.slow
def test_all_ways_agree_at_two_points_and_divided(setting, monkeypatch):
    task, (x, y) = Task(Attending(**SETTINGS[setting])), examples()
    query = two_point_query(task, x, y)
    monkeypatch.setattr(per_example, "_by_rows", lambda *a, **k: pytest.fail("rows were formed"))
    assert_all_ways_agree(task, query, x, y, 1e-9)


@pytest.mark.parametrize("how", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_unsupported_attention_runs_torchs_forward(how):
    task, (x, y) = Task(Attending(**how)), examples()
    query = one_point_query(task, x, y)
    plan = clipper_of(task).coverage(task, query.points[0], x, y)
    assert plan is None or "attention" not in plan.layers
    assert_all_ways_agree(task, query, x, y, 1e-10, fast=False)


class Transformer(nn.Module):
    """Tokens, position embeddings as a raw parameter, and torch's encoder."""

    def __init__(self, norm_first=False, activation="gelu", padded=False):
        super().__init__()
        self.table, self.places = nn.Embedding(20, 8, padding_idx=0), nn.Parameter(noise(5, 8).float())
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, activation, batch_first=True, norm_first=norm_first)
        self.body, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=padded), nn.Linear(8, 3)
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        self.padded = padded

    def forward(self, x):
        blank = (x == 0) & (torch.arange(5, device=x.device) > 0) if self.padded else None
        return self.last(self.body(self.table(x) + self.places, src_key_padding_mask=blank)[:, 0])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("how", [{}, {"norm_first": True}, {"activation": "relu"}, {"padded": True}], ids=str)
@pytest.mark.slow
def test_torchs_encoder_has_book_keeping_except_for_its_positions(how, monkeypatch):
    task = Task(Transformer(**how))
    x, y = torch.randint(20, (6, 5), generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    seeds = torch.arange(6)
    points = tuple(0.3 * noise(task.dimension, seed=seed) for seed in (5, 6))
    blocks = (SumBlock((Term(0.5, 0.5), Term(0.1, 0.5, (1.0, -1.0)))),)
    plan = clipper_of(task).coverage(task, points[0], x, y)
    assert plan.remaining == ("places",)
    assert_all_ways_agree(task, Query(points, blocks), x, y, 1e-9)
    del task.gradients
    monkeypatch.setattr(per_example, "_by_rows", lambda *a, **k: pytest.fail("rows were formed"))
    (got,) = sum_gradients(task, Query(points, blocks), x, y, seeds=seeds)
    (want,) = per_example.sum_gradients_loop(task, Query(points, blocks), x, y, seeds=seeds)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@SET
def test_one_example_never_adds_more_than_the_clip_norm(setting):
    task, (_, y) = Task(Attending(**SETTINGS[setting])), examples()
    for seed in range(3):
        params = 0.5 * noise(task.dimension, seed=seed).float()
        x = 10 * noise(1, 16, seed=seed).float()
        (total,) = sum_gradients(task, Query((params,), (SumBlock((Term(0.01),)),)), x, y[:1])
        assert float(total.double().norm()) <= 0.01 * (1 + 2e-6)
