"""Random classifiers of Hugging Face ``transformers``, for tests and benchmarks. Nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import transformers as hf

CLASSES = 3
IDS = {"num_labels": CLASSES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Net(nn.Module):
    """A classifier as one function of the ids, 0 of which is padding."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids=x, attention_mask=(x != 0).long()).logits
        return logits


def sizes_of(width: int, layers: int, heads: int, vocabulary: int, positions: int) -> dict[str, int]:
    """A model's sizes by their usual names in configurations."""
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": positions,
        "vocab_size": vocabulary,
    }


def classifier(name: str, sizes: Mapping[str, int], **more: Any) -> Net:
    """A model whose configuration has the usual names: ``classifier("Bert", sizes)``."""
    config = getattr(hf, f"{name}Config")(**{**sizes, **more})
    return Net(getattr(hf, f"{name}ForSequenceClassification")(config))


def gpt2(sizes: Mapping[str, int], **more: Any) -> Net:
    """A GPT-2 without dropout, other than ``more`` says."""
    names = {
        "n_embd": sizes["hidden_size"],
        "n_layer": sizes["num_hidden_layers"],
        "n_head": sizes["num_attention_heads"],
        "n_positions": sizes["max_position_embeddings"],
        "vocab_size": sizes["vocab_size"],
    }
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return classifier("GPT2", names, **{**quiet, **IDS, **more})


def opt(sizes: Mapping[str, int], **more: Any) -> Net:
    """An OPT without dropout, other than ``more`` says."""
    own = {"ffn_dim": 4 * sizes["hidden_size"], "word_embed_proj_dim": sizes["hidden_size"], "dropout": 0.0}
    return classifier("OPT", sizes, **{**own, **IDS, **more})
