import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedpriv._internal.memory import bytes_per_unit
from fedpriv._internal.validation import ArgumentError
from fedpriv.clipping import gradients_loop, sum_gradients
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.losses import LOSSES, TARGETS
from fedpriv.tasks.task import Task


def batch(n: int = 6, classes: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.random((n, 1, 28, 28), dtype=np.float32))
    return x, torch.from_numpy(generator.integers(0, classes, n))


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
def test_losses_and_gradients_are_torchs_own(name):
    task = Task(name)
    params, (x, y) = task.initial(np.random.default_rng(1)), batch()
    module = copy.deepcopy(task.module).requires_grad_(True)
    with torch.no_grad():
        for key, tensor in task.layout.split(params).items():
            module.get_parameter(key).copy_(tensor)
    losses = F.cross_entropy(module(x), y, reduction="none")
    torch.testing.assert_close(task.losses(params, x, y), losses)
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(losses[2], list(module.parameters()))])
    for rows in (task.gradients(params, x, y), gradients_loop(task, params, x, y)):
        torch.testing.assert_close(rows[2], wanted, rtol=1e-4, atol=1e-6)


def test_squared_error_of_a_linear_model_has_the_textbook_gradient():
    task = Task(nn.Linear(3, 1), loss="squared-error")
    params, x, y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.eye(3), torch.tensor([5.0, 5.0, 5.0])
    torch.testing.assert_close(task.losses(params, x, y), torch.tensor([0.0, 0.5, 2.0]))
    torch.testing.assert_close(task.gradients(params, x, y)[2], torch.tensor([0.0, 0.0, 2.0, 2.0]))
    assert task.evaluate(params, x, y) == {"mse": pytest.approx(5 / 3), "loss": pytest.approx(2.5 / 3)}
    flat = Task(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), loss="squared-error")  # outputs (n,)
    assert flat.evaluate(params, x, y) == task.evaluate(params, x, y)


def test_one_output_is_the_logit_of_class_one():
    """Wang 2023, section 7.1: -(y log phi(x theta) + (1 - y) log(1 - phi(x theta)))."""
    task = Task(nn.Linear(3, 1, bias=False))
    params, x, y = torch.tensor([1.0, -2.0, 0.5]), torch.eye(3), torch.tensor([1, 1, 0])
    phi = torch.sigmoid(params)
    wanted = -(y * phi.log() + (1 - y) * (1 - phi).log())
    torch.testing.assert_close(task.losses(params, x, y), wanted)
    two = torch.stack([torch.zeros(3), params], 1)  # as the softmax over (0, x theta)
    torch.testing.assert_close(wanted, F.cross_entropy(two, y, reduction="none"))
    assert task.evaluate(params, x, y)["accuracy"] == pytest.approx(1 / 3)
    assert bool(torch.isfinite(task.losses(1e30 * params, x, y)).all())


def test_tags_are_independent_and_summed():
    task = Task(nn.Linear(2, 3), loss="tag-entropy")
    params = torch.tensor([1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 0.1, 0.2, 0.3])
    x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    p = torch.sigmoid(task.outputs(params, x))
    wanted = -(y * p.log() + (1 - y) * (1 - p).log()).sum(1)
    torch.testing.assert_close(task.losses(params, x, y), wanted)
    assert task.evaluate(params, x, y) == {
        "accuracy": 0.5,  # the second example has no tag to hit
        "recall@5": 1.0,  # of three tags all are among the first five
        "loss": pytest.approx(float(wanted.mean())),
    }


def test_recall_at_five_counts_tags_among_the_five_likeliest():
    task = Task(nn.Linear(1, 8, bias=False), loss="tag-entropy")
    params = torch.arange(8.0)  # tags 7, 6, 5, 4, 3 are the likeliest, for every x above 0
    y = torch.zeros(1200, 8)
    y[:, [0, 3]] = 1
    y[600:, 7] = 1
    found = task.evaluate(params, torch.ones(1200, 1), y)
    assert found["recall@5"] == pytest.approx((600 + 2 * 600) / (2 * 600 + 3 * 600))
    assert found["accuracy"] == 0.5
    assert task.evaluate(params, torch.ones(2, 1), torch.zeros(2, 8))["recall@5"] == 0


def test_a_user_loss_has_an_accuracy_for_labels_only():
    task = Task("logistic", loss=lambda outputs, y: outputs.square().sum(1))
    params, (x, y) = task.initial(np.random.default_rng(1)), batch()
    assert set(task.evaluate(params, x, y)) == {"accuracy", "loss"}
    assert set(task.evaluate(params, x, y.float())) == {"loss"}


def test_every_target_has_a_loss():
    assert set(TARGETS.values()) == set(LOSSES)


def test_evaluation_takes_as_many_examples_as_memory_allows(monkeypatch):
    task, passes = Task("logistic"), []
    params, outputs = task.initial(np.random.default_rng(0)), task.outputs
    x, y = torch.randn(90, 1, 28, 28), torch.arange(90) % 10
    whole = task.evaluate(params, x, y)
    each = bytes_per_unit(lambda count: outputs(params, torch.zeros(count, 1, 28, 28)))
    monkeypatch.setattr(task, "outputs", lambda p, x: passes.append(len(x)) or outputs(p, x))
    few = task.evaluate(params, x, y, memory=20 * each)
    assert few == {name: pytest.approx(value) for name, value in whole.items()}
    assert passes[-5:] == [20, 20, 20, 20, 10]


def test_evaluation_in_chunks_is_the_plain_mean():
    task = Task("logistic")
    params, (x, y) = task.initial(np.random.default_rng(1)), batch(2503)
    outputs = task.outputs(params, x)
    assert task.evaluate(params, x, y) == {
        "accuracy": pytest.approx(float((outputs.argmax(1) == y).float().mean())),
        "loss": pytest.approx(float(F.cross_entropy(outputs, y)), rel=1e-5),
    }


def test_a_model_that_mixes_examples_is_scored_as_it_was_trained():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 2)

        def forward(self, x):
            return self.last(x - x.mean(0))

    task = Task(Centred())
    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    params = torch.randn(task.dimension, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([task.losses(params, x[i : i + 1], y[i : i + 1]) for i in range(40)])
    together = float(task.losses(params, x, y).mean())
    scored = task.evaluate(params, x, y)["loss"]
    assert scored == pytest.approx(float(alone.mean()), rel=1e-5)
    assert scored != pytest.approx(together, rel=0.01)


def test_the_users_module_is_unchanged():
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(inplace=True))
    before = copy.deepcopy(module.state_dict())
    task = Task(module)
    task.gradients(task.initial(np.random.default_rng(0)), torch.ones(2, 3), torch.zeros(2).long())
    assert module.training
    assert module[1].inplace
    assert module[0].weight.requires_grad
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_frozen_parameters_take_part_and_follow_the_vectors_precision():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    task = Task(module)
    x, y = torch.ones(2, 3, dtype=torch.float64), torch.tensor([0, 1])
    params = task.initial(np.random.default_rng(0)).double()
    assert task.layout.frozen == ("0.weight", "0.bias")
    assert task.gradients(params, x, y).dtype == torch.float64
    assert task.losses(params.float(), x.float(), y).dtype == torch.float32


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda each: each.mean(), r"loss shape is '\(\)'; it must be \(n,\): one for each .*reduction"),
        (lambda each: each[:, None], r"loss shape is '\(n, 1\)'"),
        (lambda each: each[:1], "loss shape is 'another'"),
        (lambda each: each - each.mean(), "loss is '<lambda>'; it must be of each example alone"),
        (lambda each: each.mean().expand(len(each)), "be of each example alone"),
        (lambda each: each / len(each), "be of each example alone"),
        (lambda each: each * math.nan, "loss is '<lambda>'; it must be finite"),
        (lambda each: each / 0, "be finite"),
        (lambda each: each.detach(), "loss is '<lambda>'; it must have a gradient in the outputs"),
        (lambda each: each > 0.7, "have a gradient"),
        (lambda each: None, r"it must give a tensor \(n,\) \(it gives NoneType\)"),
        (lambda each: 0.5, "it gives float"),
    ],
)
def test_a_loss_that_trains_nothing_is_refused(loss, message):
    task = Task(nn.Linear(3, 2), loss=lambda outputs, y: loss(F.cross_entropy(outputs, y, reduction="none")))
    x, y = torch.ones(2, 3), torch.tensor([0, 1])
    if "another" in message:  # vmap asks for one at a time
        with pytest.raises(ArgumentError, match=message):
            task.losses(torch.zeros(8), x, y)
        return
    query = Query((torch.zeros(8),), (SumBlock((Term(clip_norm=1.0),)),))
    for use in (lambda: task.losses(torch.zeros(8), x, y), lambda: sum_gradients(task, query, x, y)):
        with pytest.raises(ArgumentError, match=message):
            use()


def _log_of_probability(outputs, y):
    assert bool(((outputs > 0) & (outputs < 1)).all())
    return -outputs.gather(1, y[:, None])[:, 0].log()


LOSSES_OF_ONES_OWN = [
    (nn.Linear(3, 2), lambda o, y: F.multi_margin_loss(o.float(), y, reduction="none"), torch.tensor([0, 1])),
    (nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), _log_of_probability, torch.tensor([0, 1])),
    (nn.Linear(3, 1), lambda o, y: o[:, 0].exp() - y.log() * o[:, 0], torch.tensor([1.5, 2.0])),  # y = 0: inf
    (nn.Linear(3, 2), lambda o, y: F.huber_loss(o, y, reduction="none").sum(1), torch.ones(2, 2)),
    (nn.Linear(3, 9), lambda o, y: F.cross_entropy(o, y - 5, reduction="none"), torch.tensor([5, 6])),
]


@pytest.mark.parametrize(("module", "loss", "y"), LOSSES_OF_ONES_OWN)
def test_a_loss_of_independent_examples_is_accepted(module, loss, y):
    task, x = Task(module, loss=loss), torch.ones(2, 3)
    params = task.initial(np.random.default_rng(0))
    assert task.losses(params, x, y).shape == (2,)
    exact = y.double() if y.is_floating_point() else y
    assert bool(task.losses(params.double(), x.double(), exact).isfinite().all())


def test_a_loss_is_tried_once_and_on_no_example():
    seen = []

    def loss(outputs, y):
        seen.append((outputs, y))
        return F.cross_entropy(outputs, y, reduction="none")

    task = Task(nn.Linear(3, 2), loss=loss)
    x, y = torch.full((2, 3), 77.0), torch.tensor([1, 1])
    for _ in range(2):
        task.losses(torch.ones(8), x, y)
    *tried, first, second = seen
    assert [len(outputs) for outputs, _ in tried] == 3 * [3, 1, 1, 1]
    assert all(bool((outputs < 1).all()) for outputs, _ in tried)
    assert torch.equal(first[0], second[0])


def test_unknown_names_and_unbounded_models_are_refused():
    with pytest.raises(ArgumentError, match="cross-entropy"):
        Task("cnn", loss="hinge")
    with pytest.raises(ArgumentError, match="layer 1"):
        Task(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    with pytest.raises(ArgumentError, match="test set"):
        Task("cnn").evaluate(torch.zeros(26010), torch.zeros(0, 1, 28, 28), torch.zeros(0).long())


def test_no_examples_give_no_rows():
    x, y = batch(0)
    assert Task("logistic").gradients(torch.zeros(7850), x, y).shape == (0, 7850)
