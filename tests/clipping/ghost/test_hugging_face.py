"""Models of Hugging Face ``transformers`` in their normal call ``model(input_ids, attention_mask)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.hugging_face import CLASSES, IDS, QUIET, Net, classifier, gpt2, hf, opt, sizes_of
from helpers.places import rounding_moved
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn

from fedpriv.clipping.functional import FunctionalModel, clipped_sum
from fedpriv.clipping.ghost.clipper import clipper_of
from fedpriv.clipping.ghost.layers import hugging_face, rule_of
from fedpriv.clipping.per_example import gradients_loop
from fedpriv.parameters import layout_of
from fedpriv.tasks.task import Task

VOCABULARY, LENGTH = 50, 10
LOSS = nn.CrossEntropyLoss(reduction="none")
SIZES = sizes_of(width=32, layers=2, heads=2, vocabulary=VOCABULARY, positions=40)


class Pooled(nn.Module):
    """The mean of an encoder's last states, and a linear layer."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mask = (x != 0).long()
        states = self.encoder(input_ids=x, attention_mask=mask)[0]
        there = mask[..., None].to(states.dtype)
        pooled: Tensor = self.head((states * there).sum(1) / there.sum(1).clamp(min=1))
        return pooled


def t5() -> nn.Module:
    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0,
        pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    return Pooled(hf.T5EncoderModel(config))


def distilbert() -> nn.Module:
    config = hf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=40,
        dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=CLASSES,
    )  # fmt: skip
    return Net(hf.DistilBertForSequenceClassification(config))


def plain(name: str, **more: Any) -> Callable[[], nn.Module]:
    """A model whose configuration has the usual names."""

    def build() -> nn.Module:
        return classifier(name, SIZES, **more)

    return build


KINDS: dict[str, tuple[Callable[[], nn.Module], int]] = {  # and the parameters whose gradients are formed
    "bert": (plain("Bert", **QUIET, num_labels=CLASSES), 0),
    "roberta": (plain("Roberta", **QUIET, **IDS), 0),
    "electra": (plain("Electra", **QUIET, embedding_size=32, num_labels=CLASSES), 0),
    "albert": (plain("Albert", **QUIET, embedding_size=32, num_labels=CLASSES), 0),
    "distilbert": (distilbert, 0),
    "gpt-2": (lambda: gpt2(SIZES), 0),
    "gpt-neox": (plain("GPTNeoX", **IDS), 0),
    "opt": (lambda: opt(SIZES), 0),
    "llama": (plain("Llama", **IDS, num_key_value_heads=1), 0),
    "mistral": (plain("Mistral", **IDS, num_key_value_heads=1, sliding_window=4), 0),
    "qwen2": (plain("Qwen2", **IDS, num_key_value_heads=1), 0),
    "gemma": (plain("Gemma", **IDS, num_key_value_heads=1, head_dim=16), 0),
    "t5": (t5, 0),
}


def built(kind: str) -> nn.Module:
    """The model, moved from its initial values, where biases and norms are 0 and 1."""
    torch.manual_seed(0)
    network = KINDS[kind][0]().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return network


def batch(rows: int = 6) -> tuple[Tensor, Tensor]:
    """Texts of several lengths, and labels."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(3, VOCABULARY, (rows, LENGTH), generator=generator)
    x[1, 7:], x[4, 5:] = 0, 0
    return x, torch.randint(0, CLASSES, (rows,), generator=generator)


def by_loop(network: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """The clipped sum, one example at a time, and the clip norm: the median norm."""
    task = FunctionalModel(network, LOSS)
    params = task.layout.join({name: p.detach() for name, p in network.named_parameters()})
    rows = gradients_loop(task, params, x, y)
    norms = rows.norm(dim=1)
    clip = float(norms.median())
    return (rows * (clip / norms).clamp(max=1)[:, None]).sum(0), clip


def formed(network: nn.Module, x: Tensor, y: Tensor) -> int | None:
    """The number of parameters whose gradients are formed for each example; None: all are."""
    task = FunctionalModel(network, LOSS)
    params = task.layout.join({name: p.detach() for name, p in network.named_parameters()})
    coverage = clipper_of(task).coverage(task, params, x, y)
    return coverage.formed if coverage else None


@pytest.mark.parametrize("kind", KINDS)
def test_the_clipped_sum_is_that_of_the_plain_loop(kind: str) -> None:
    network, (x, y) = built(kind), batch()
    wanted, clip = by_loop(network, x, y)
    got = clipped_sum(network, LOSS, x, y, clip)
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()
    for part, same in zip(*(layout_of(network).split(v).values() for v in (got, wanted)), strict=True):
        assert (part - same).norm() <= 1e-4 * same.norm() + 1e-6 * wanted.norm()
    assert formed(network, x, y) == KINDS[kind][1]


OFTEN = ("bert", "gpt-2", "llama")  # the others repeat them with other layers


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.exhaustive) for kind in KINDS]
)
def test_rounding_depends_on_no_other_unit(kind: str) -> None:
    assert rounding_moved(Task(built(kind)), (LENGTH,), tokens=(VOCABULARY,)) <= 1.001


class Seen(nn.Module):
    """An image classifier as one function of the pixels."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(pixel_values=x).logits
        return logits


@pytest.mark.slow
def test_the_clipped_sum_of_a_vit_is_that_of_the_plain_loop() -> None:
    """Its class token and position embeddings, which belong to no layer, are formed."""
    sizes = {
        key: value for key, value in SIZES.items() if key not in ("max_position_embeddings", "vocab_size")
    }
    config = hf.ViTConfig(**sizes, **QUIET, image_size=16, patch_size=8, num_channels=1, num_labels=CLASSES)
    torch.manual_seed(0)
    network = Seen(hf.ViTForImageClassification(config)).eval()
    x, (_, y) = torch.rand(6, 1, 16, 16), batch()
    wanted, clip = by_loop(network, x, y)
    assert (clipped_sum(network, LOSS, x, y, clip) - wanted).norm() <= 1e-5 * wanted.norm()
    assert formed(network, x, y) == 32 + 5 * 32


@pytest.mark.parametrize("kind", ["mixtral", "bloom"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch, under vmap
def test_models_with_parts_that_cannot_be_looked_into_are_exact_too(kind: str) -> None:
    """Experts are fused tensors without a layer; Bloom's activation has a backward pass of its own."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    bloom = {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 2}
    torch.manual_seed(0)
    network = (
        plain("Mixtral", **IDS, **experts, num_key_value_heads=1)()
        if kind == "mixtral"
        else Net(hf.BloomForSequenceClassification(hf.BloomConfig(**bloom, **IDS)))
    ).eval()
    x, y = batch()
    wanted, clip = by_loop(network, x, y)
    assert (clipped_sum(network, LOSS, x, y, clip) - wanted).norm() <= 1e-5 * wanted.norm()
    assert formed(network, x, y) is None


@pytest.mark.parametrize("kind", ["bert", "gpt-2", "llama"])
@pytest.mark.slow
def test_an_example_adds_the_same_bits_whoever_is_beside_it(kind: str) -> None:
    """Also where all others are whole, or all are padded: transformers leaves out masks that mask nothing."""
    network, (x, y) = built(kind), batch(40)
    x[1:, 5:] = 0
    whole = torch.randint(3, VOCABULARY, x.shape, generator=torch.Generator().manual_seed(2))
    whole[0] = x[0]
    _, clip = by_loop(network, x[:1], y[:1])

    def added(inputs: Tensor) -> Tensor:
        """What the first example adds, by a loss that is 0 for the others."""

        def loss(outputs: Tensor, labels: Tensor) -> Tensor:
            losses: Tensor = LOSS(outputs, labels.clamp(min=0))
            return torch.where(labels >= 0, losses, 0 * losses)

        labels = torch.full_like(y, -1)
        labels[0] = y[0]
        return clipped_sum(network, loss, inputs, labels, clip)

    assert torch.equal(added(x), added(whole))


def test_a_layer_that_only_has_the_name_fails_the_trial() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x * x) @ self.weight + self.bias

    Conv1D.__module__ = "transformers.made.up"
    assert rule_of(Conv1D) is not None
    network = nn.Sequential(Conv1D(), nn.Tanh(), nn.Linear(3, CLASSES))
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    wanted, clip = by_loop(network, x, y)
    assert (clipped_sum(network, LOSS, x, y, clip) - wanted).norm() <= 1e-5 * wanted.norm()
    assert formed(network, x, y) != 0


def test_positions_that_the_mask_alone_gives_are_those_of_the_plain_loop() -> None:
    """OPT's position embedding counts the mask where it is given no positions."""

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = hf.models.opt.modeling_opt.OPTLearnedPositionalEmbedding(LENGTH, 32)
            self.head = nn.Linear(32, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head(torch.tanh(self.places((x != 0).long(), 2)).sum(1))
            return outputs

    torch.manual_seed(0)
    network, (x, y) = Counted(), batch()
    wanted, clip = by_loop(network, x, y)
    assert (clipped_sum(network, LOSS, x, y, clip) - wanted).norm() <= 1e-5 * wanted.norm()
    assert formed(network, x, y) == 0


def test_masks_are_left_out_again_outside_of_passes() -> None:
    masks = hf.masking_utils
    with hugging_face.masks_in_full():
        assert masks.is_tracing(torch.ones(1))
    assert not masks.is_tracing(torch.ones(1))


@pytest.mark.parametrize(("kind", "target"), [("bert", ["query", "value"]), ("gpt-2", ["c_attn"])])
@pytest.mark.slow
def test_lora_of_peft_trains_its_adapters_alone(kind: str, target: list[str]) -> None:
    def adapted() -> Any:
        return get_peft_model(
            built(kind), LoraConfig(r=4, target_modules=target, fan_in_fan_out=kind == "gpt-2")
        )

    network, (x, y) = adapted(), batch()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    wanted, clip = by_loop(network.eval(), x, y)
    got = clipped_sum(network, LOSS, x, y, clip)
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()
    assert formed(network, x, y) == 0
    assert all("lora" in name for name in layout_of(network).names)
    # What a run writes, by the parameters' names, is an adapter that peft reads.
    trained = layout_of(network).split(torch.randn(layout_of(network).dimension))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name in trained:
                parameter.copy_(trained[name])
    other = adapted().eval()
    assert not torch.allclose(other(x), network(x))
    set_peft_model_state_dict(other, get_peft_model_state_dict(network))
    assert torch.allclose(other(x), network(x))
