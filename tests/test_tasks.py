import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedpriv._check import ArgumentError
from fedpriv.clipping import gradients_loop
from fedpriv.tasks import Task


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
    assert task.evaluate(params, x, y) == {"loss": pytest.approx(2.5 / 3)}


def test_evaluation_in_chunks_is_the_plain_mean():
    task = Task("logistic")
    params, (x, y) = task.initial(np.random.default_rng(1)), batch(2503)
    outputs = task.outputs(params, x)
    assert task.evaluate(params, x, y) == {
        "accuracy": pytest.approx(float((outputs.argmax(1) == y).float().mean())),
        "loss": pytest.approx(float(F.cross_entropy(outputs, y)), rel=1e-5),
    }


def test_the_users_module_is_left_alone():
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


def test_a_loss_that_mixes_examples_is_refused():
    task = Task(nn.Linear(3, 2), loss=lambda outputs, y: F.cross_entropy(outputs, y))
    with pytest.raises(ArgumentError, match="one for each example"):
        task.losses(torch.zeros(8), torch.ones(2, 3), torch.tensor([0, 1]))


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
