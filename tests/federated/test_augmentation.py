"""Augmentation multiplicity: means over variants are clipped; a variant follows from its example alone."""

import numpy as np
import pytest
import torch

from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import gradients_loop
from fedpriv.config.builders import make_augmentation
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.data import Arrays, load
from fedpriv.federated.augmentation import Augmentation
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.node.factory import make_worker
from fedpriv.scattering import scattering

DIGITS = load("infinite-digits")
RUN = {"clients": 50, "model": "logistic", "augmentation-copies": 3, "seed": 1}


def answered(ids, clip_norm, **more):
    """The worker of a run, its point, and its sum over these clients."""
    worker = make_worker(Config.parse({**RUN, **more}).table())
    point = worker.task.initial(np.random.default_rng(0))
    query = Query((point,), (SumBlock((Term(clip_norm),)),))
    shard = Shard(0, np.asarray(ids), len(ids))
    return worker, point, worker.answer(SumRequest(query, 4, (shard,), None)).sums[0]


def test_a_client_adds_the_mean_over_its_variants_clipped_once():
    drawn = []

    class Kept(Augmentation):
        def batch(self, *given):
            drawn.append(super().batch(*given))
            return drawn[-1]

    for clip_norm in (0.3, 50.0):
        worker, point, _ = answered([3], clip_norm)
        object.__setattr__(worker, "augmentation", Kept(3, shift=2))
        query = Query((point,), (SumBlock((Term(clip_norm),)),))
        (total,) = worker.answer(SumRequest(query, 4, (Shard(0, np.array([3, 9]), 2),), None)).sums
        x, y, owner = drawn[-1]
        assert owner.tolist() == [0, 0, 0, 1, 1, 1]
        means = gradients_loop(worker.task, point, x, y).view(2, 3, -1).mean(1).double()
        factors = (clip_norm / means.norm(dim=1)).clamp(max=1)
        torch.testing.assert_close(total, factors @ means, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("copies", [1, 4])
def test_the_sensitivity_is_the_clip_norm_for_any_number_of_variants(copies):
    _, _, without = answered([3, 9], 0.2, **{"augmentation-copies": copies})
    _, _, beside = answered([3, 9, 20], 0.2, **{"augmentation-copies": copies})
    assert 0.19 < float((beside - without).norm()) <= 0.2 * (1 + 1e-5)


def test_variants_of_an_example_do_not_depend_on_those_beside_it():
    x, y = DIGITS.batch(np.arange(400, 406))
    seeds = torch.arange(6) * 12345
    augmentation = Augmentation(4, shift=3, flip=True, deform=1.0)
    together = augmentation.variants(x, seeds)
    assert together.shape == (24, 1, 28, 28)
    assert not torch.equal(together[0], together[1])
    assert torch.equal(augmentation.variants(x[4:5], seeds[4:5]), together[16:20])
    assert bool((together >= 0).all() & (together <= 1).all())
    assert y.shape == (6,)


def test_variants_are_all_moves_and_mirrors_equally_often():
    image = torch.zeros(1, 1, 5, 5)
    image[0, 0, 2, 1] = 1
    variants = Augmentation(8000, shift=1, flip=True).variants(image, torch.tensor([3]))
    places, counts = variants.flatten(1).argmax(1).unique(return_counts=True)
    rows, columns = places // 5, places % 5
    assert sorted(set(rows.tolist())) == [1, 2, 3]
    assert sorted(set(columns.tolist())) == [0, 1, 2, 3, 4]
    wanted = torch.where(columns == 2, 2, 1) * 8000 / 18  # column 2 is reached with and without the mirror
    # A count is binomial: 6 standard deviations in one of 15 places have a chance of 3e-8.
    assert bool(((counts - wanted).abs() < 6 * wanted.sqrt()).all())
    assert torch.equal(variants.sum((1, 2, 3)), torch.ones(8000))


def test_variants_are_drawn_before_their_features():
    keys = {"features": "scattering", "model": "normalised-linear"}
    worker, _, total = answered([3], 1.0, **keys)
    assert 0 < float(total.norm()) <= 1 + 1e-5
    x, y, owner = worker.view.batch(np.array([3]))
    assert x.shape == (1, 1, 28, 28)
    found, *_ = worker.augmentation.batch(x, y, owner, torch.tensor([5]))
    plain = Augmentation(3, shift=2).variants(x, torch.tensor([5]))
    assert torch.equal(found, scattering(plain).half().float())


def test_releases_draw_other_variants_and_seeded_runs_the_same():
    worker, point, total = answered([3], 50.0)
    query = Query((point,), (SumBlock((Term(50.0),)),))
    again, other = (
        worker.answer(SumRequest(query, release, (Shard(0, np.array([3]), 1),), None)).sums[0]
        for release in (4, 5)
    )
    assert torch.equal(again, total)
    assert not torch.equal(other, total)


def test_what_cannot_be_varied_is_refused():
    with pytest.raises(ArgumentError, match="augmentation-copies is 2, which needs work=gradient"):
        make_plan(Config.parse({**RUN, "augmentation-copies": 2, "work": "local-steps"}))
    with pytest.raises(ArgumentError, match="augmentation-copies is 3; it must be 0"):
        make_augmentation(Config.parse(RUN), Arrays("rows", np.ones((2, 9)), [0, 1], np.ones((1, 9)), [0], 2))
    with pytest.raises(ArgumentError, match=r"augmentation-deform is 0.5"):
        Augmentation(1, deform=0.5).variants(torch.zeros(1, 3, 32, 32), torch.tensor([1]))
