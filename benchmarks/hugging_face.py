"""Clipped sums of models of Hugging Face ``transformers``, beside an ordinary gradient and beside Opacus.

    python benchmarks/hugging_face.py
    python benchmarks/hugging_face.py --cases gpt-2-lora --width 128

The models are random: 4 layers of the given width, sequences of 64 ids of 1,000, batches of 32. The sides
take turns on one thread; printed are medians, and their ratio to the ordinary gradient of the batch.
``-dropout`` has the rates of BERT, 0.1, which draw masks in every pass.
``-lora`` trains adapters of rank 8 alone (``peft``). Opacus forms the gradient of each example with hooks,
and clips and sums them. (It needs training mode.)
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.hugging_face import CLASSES, IDS, QUIET, classifier, gpt2, opt, sizes_of
from opacus.grad_sample import GradSampleModule
from peft import LoraConfig, get_peft_model

from fedpriv.clipping.dropout import example_seeds
from fedpriv.clipping.functional import FunctionalModel
from fedpriv.clipping.per_example import sum_gradients
from fedpriv.mechanism.query import Query, SumBlock, Term

VOCABULARY, LENGTH, BATCH, LAYERS, HEADS, RANK = 1000, 64, 32, 4, 4, 8
LOSS = nn.CrossEntropyLoss(reduction="none")
CASES = ("bert", "gpt-2", "llama", "opt", "bert-dropout", "gpt-2-lora")


def model_of(case: str, width: int) -> nn.Module:
    """The model of a case, in evaluation mode where nothing drops."""
    sizes = sizes_of(width, LAYERS, HEADS, VOCABULARY, 2 * LENGTH)
    network: Any
    if case == "bert":
        network = classifier("Bert", sizes, **QUIET, num_labels=CLASSES)
    elif case == "bert-dropout":
        return classifier("Bert", sizes, num_labels=CLASSES).train()
    elif case == "llama":
        network = classifier("Llama", sizes, **IDS)
    elif case == "opt":
        network = opt(sizes)
    else:
        network = gpt2(sizes)
    if case.endswith("-lora"):
        network = get_peft_model(network, LoraConfig(r=RANK, target_modules=["c_attn"], fan_in_fan_out=True))
    return network.eval()  # type: ignore[no-any-return]


def sides_of(network: nn.Module) -> tuple[int, dict[str, Callable[[], object]]]:
    """(the number of trained parameters, the sides by name)."""
    x, y = torch.randint(3, VOCABULARY, (BATCH, LENGTH)), torch.randint(0, CLASSES, (BATCH,))
    task = FunctionalModel(network, LOSS)
    params = task.layout.join({name: p.detach() for name, p in network.named_parameters() if p.requires_grad})
    query = Query((params,), (SumBlock((Term(clip_norm=1.0),)),))
    seeds = example_seeds(0, torch.arange(BATCH)) if task.dropout.draws else None

    def ordinary() -> None:
        network.zero_grad()
        LOSS(network(x), y).sum().backward()

    sides: dict[str, Callable[[], object]] = {
        "ordinary gradient": ordinary,
        "fedpriv": lambda: sum_gradients(task, query, x, y, seeds=seeds),
    }
    try:
        hooked = GradSampleModule(copy.deepcopy(network).train(), loss_reduction="sum")
    except Exception as error:  # a layer that Opacus has no rule for
        print(f"Opacus refuses the model: {str(error).splitlines()[0]}")
        return task.dimension, sides

    def opacus() -> Tensor:
        hooked.zero_grad()
        LOSS(hooked(x), y).sum().backward()
        rows = torch.cat([p.grad_sample.flatten(1) for p in hooked.parameters() if p.requires_grad], 1)
        return rows.T @ (1.0 / rows.norm(dim=1)).clamp(max=1.0)

    return task.dimension, {**sides, "Opacus": opacus}


def main() -> None:
    """Prints a line for each case and side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--turns", type=int, default=8)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for case in asked.cases:
        dimension, sides = sides_of(model_of(case, asked.width))
        times: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(-1, asked.turns):
            for name, side in sides.items():
                began = time.perf_counter()
                try:
                    side()
                except Exception as error:
                    print(f"{case}: {name} fails: {str(error).splitlines()[0]}")
                    times.pop(name)
                    continue
                if turn >= 0:
                    times[name].append(time.perf_counter() - began)
            sides = {name: side for name, side in sides.items() if name in times}
        medians = {name: statistics.median(found) for name, found in times.items()}
        least = medians["ordinary gradient"]
        for name, median in medians.items():
            print(f"{case:12} {dimension:9,} {name:18} {1000 * median:7.0f} ms {median / least:5.2f}")


if __name__ == "__main__":
    main()
