"""Frozen parameters and LoRA adapters by settings: what is trained, what stays, and what peft reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.clipping_paths import noise
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor, nn

import fedpriv
from fedpriv.clipping import sum_gradients, sum_gradients_loop
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.models import parts
from fedpriv.tasks.task import Task

FEW: dict[str, Any] = {
    "dataset": "infinite-digits",
    "clients": 200,
    "sampling_rate": 0.2,
    "rounds": 2,
    "epsilon": 3.0,
    "learning_rate": 1.0,
    "engine": "in-process",
    "evaluate_every": 2,
}


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 6), nn.ReLU(), nn.Linear(6, 10))


class Every(nn.Module):
    """A layer of each kind that takes adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv, self.head = nn.Embedding(9, 4), nn.Conv1d(4, 5, 2), nn.Linear(15, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.tanh(self.conv(self.table(x).mT)).flatten(1))
        return outputs


def trained(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def test_frozen_parameters_stay_and_the_others_are_trained() -> None:
    result = fedpriv.simulate(FEW, model=net(), frozen="1.*")
    start, model = net().state_dict(), result.model()
    assert trained(model) == ["3.weight", "3.bias"]
    assert result.params.numel() == 6 * 10 + 10
    assert all(torch.equal(model.state_dict()[name], start[name]) for name in ("1.weight", "1.bias"))
    assert not torch.equal(model.state_dict()["3.weight"], start["3.weight"])


def test_adapters_are_trained_and_peft_reads_them(tmp_path: Path) -> None:
    result = fedpriv.simulate(FEW, model=net(), lora_rank=2, lora_alpha=4, lora_beside="3", seed=5)
    assert all("lora_" in name or "modules_to_save" in name for name in trained(result.model()))
    assert result.params.numel() == 2 * (784 + 6) + 6 * 10 + 10
    x, model = torch.rand(5, 1, 28, 28), result.model()
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(net(), tmp_path).eval()
    torch.testing.assert_close(again(x), model(x))
    assert not torch.allclose(model(x), net()(x))
    merged = model.merge_and_unload()
    assert list(merged.state_dict()) == list(net().state_dict())
    torch.testing.assert_close(merged(x), again(x))


def test_a_model_with_new_adapters_computes_as_before() -> None:
    """A layer of each kind; clipped sums are those of the plain loop, and equal seeds give equal adapters."""
    torch.manual_seed(0)
    model, x, y = Every(), torch.randint(9, (12, 4)), torch.arange(12) % 3
    before = model(x)
    adapted = parts.adapt(model, 2, 0, "table conv", "head", seed=7)
    torch.testing.assert_close(adapted(x), before)
    assert len(trained(adapted)) == 2 + 2 + 2
    task = Task(adapted)
    query = Query((0.1 * noise(task.dimension, seed=2),), (SumBlock((Term(0.5),)),))
    [got], [want] = sum_gradients(task, query, x, y), sum_gradients_loop(task, query, x, y)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    alike = [parts.adapt(net(), 2, 0, "*", "", seed).state_dict() for seed in (7, 7, 8)]
    same = [all(torch.equal(one, other[name]) for name, one in alike[0].items()) for other in alike]
    assert same == [True, True, False]


def test_only_the_named_layers_get_adapters_and_are_trained() -> None:
    """peft compares the ends of names: layer 1 of a block is another layer."""

    def nested() -> nn.Module:
        block = nn.Sequential(nn.Flatten(), nn.Linear(9, 9))
        return nn.Sequential(nn.Flatten(), nn.Linear(9, 9), nn.Linear(9, 9), block)

    names = trained(parts.adapt(nested(), 2, 0, "1", "2", seed=0))
    assert {name.removeprefix("base_model.model.").split(".")[0] for name in names} == {"1", "2"}
    assert len(names) == 4
    with pytest.raises(fedpriv.ArgumentError, match=r"^lora-beside is '1'; it must name 3\.1, too"):
        parts.adapt(nested(), 2, 0, "2", "1", seed=0)


def test_alpha_scales_adapters_by_their_rank() -> None:
    layers = [
        parts.adapt(net(), rank, alpha, "1", "", 0).base_model.model[1]
        for rank, alpha in ((4, 0.0), (4, 8.0))
    ]
    assert [layer.scaling["default"] for layer in layers] == [1.0, 2.0]


def test_a_built_in_model_needs_weights_of_what_is_frozen(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"1.weight": torch.full((10, 784), 0.5), "1.bias": torch.ones(10)}, path)
    with pytest.raises(fedpriv.ArgumentError, match=r"^frozen is '1\.weight'.*give initial.weights"):
        fedpriv.simulate(FEW, model="logistic", frozen="1.weight")
    result = fedpriv.simulate(FEW, model="logistic", frozen="1.weight", initial_weights=path)
    assert result.params.numel() == 10
    assert torch.equal(result.model().state_dict()["1.weight"], torch.full((10, 784), 0.5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frozen": "7.*"}, r"^frozen is '7\.\*'; it must be the name of a trained parameter.*1\.weight"),
        ({"frozen": "*"}, r"^frozen is '\*'; it must leave a parameter that is trained"),
        ({"lora_rank": 1, "lora_layers": "2"}, r"^lora_layers is '2'; it must be the name of a linear"),
        ({"lora_rank": 1, "lora_beside": "9"}, r"^lora_beside is '9'; it must be the name of a layer"),
        ({"lora_layers": "1"}, r"needs lora_rank of at least 1"),
        ({"lora_rank": 1, "frozen": "1.*"}, r"needs lora_rank=0, since adapters freeze all else"),
    ],
)
def test_patterns_that_name_nothing_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(fedpriv.ArgumentError, match=message):
        fedpriv.simulate(FEW, model=net(), folder=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
