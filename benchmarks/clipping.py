"""Times of clipped sums of per-example gradients, compared with an ordinary gradient and Opacus' modes.

    python benchmarks/clipping.py                                  # all cases, about ten minutes
    python benchmarks/clipping.py --cases mlp cnn --batches 250 --threads 2 --clock wall
    python benchmarks/clipping.py --device cuda --batches 256 4096 65536

The sides are measured alternately in one process, so that other load on the machine affects all of them. The
output is medians in milliseconds and as multiples of the ordinary gradient (loss.mean().backward() through
the same functional model). Each Opacus mode computes the same clipped sum on the same layers (for recurrent
layers on Opacus' own): "fast" is its fast gradient clipping without ghost norms. The results are checked to
agree. The sums of DP2 and DP-SRM have no counterpart. By default times are the process's CPU time, which
varies less on a busy machine with one thread; on a GPU they are wall time until the GPU has finished. A side
that runs out of memory is named and left out.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import opacus
import torch
import torch.nn.functional as F
from models_for_clipping import (
    Case,
    images_by_prelu,
    tokens_by_embedding,
    tokens_by_gru,
    tokens_by_lstm,
    tokens_by_transformer,
)
from opacus.grad_sample import GradSampleModuleFastGradientClipping, wrap_model
from torch import Tensor, nn

from fedpriv import models
from fedpriv._internal.allocator import tune_allocator
from fedpriv.clipping import sum_gradients, sum_rows
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.models.layers import Pool
from fedpriv.tasks.task import Task

Side = Callable[[], Tensor]
CLIP_NORM = 1.0
_HELD = 2**14  # examples that a GPU sums at once


class ChannelsFirst(Pool):
    """The same pool with the channels first again: Opacus 1.6 reads patches of other layouts wrongly."""

    def forward(self, x: Tensor) -> Tensor:
        """The largest of each 2x2 square."""
        return super().forward(x).contiguous()


def images_by(name: str, n: int) -> Case:
    """A model of :mod:`fedpriv.models` on synthetic images of 28x28."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, 28, 28, generator=generator)
    y = torch.randint(10, (n,), generator=generator)
    theirs = models.build(name)
    for path, layer in list(theirs.named_children()):
        if isinstance(layer, Pool):
            setattr(theirs, path, ChannelsFirst())
    return Case(models.build(name), theirs, x, y)


CASES: dict[str, Callable[[int], Case]] = {
    "mlp": lambda n: images_by("mlp", n),
    "cnn": lambda n: images_by("cnn", n),
    "lstm": tokens_by_lstm,
    "gru": tokens_by_gru,
    "embedding": tokens_by_embedding,
    "prelu": images_by_prelu,
    "transformer": tokens_by_transformer,
}


def our_sides(task: Task, params: Tensor, x: Tensor, y: Tensor) -> dict[str, Side]:
    """The ordinary gradient, and our sums for the queries of DP-SGD, DP2 and DP-SRM."""
    generator = torch.Generator().manual_seed(1)
    near = params + 1e-3 * torch.randn(task.dimension, generator=generator).to(params)
    divisor = (torch.rand(task.dimension, generator=generator) + 0.1).to(params)
    chunk = None if x.device.type == "cpu" else _HELD
    plain = Query((params,), (SumBlock((Term(CLIP_NORM),)),))
    divided = Query((params,), (SumBlock((Term(CLIP_NORM, divisor=divisor),)),))
    both = SumBlock((Term(CLIP_NORM, 0.2), Term(0.1, 0.8, (1.0, -1.0))))

    def ordinary() -> Tensor:
        leaf = params.clone().requires_grad_()
        task.losses(leaf, x, y).mean().backward()
        assert leaf.grad is not None
        return leaf.grad

    return {
        "ordinary": ordinary,
        "ours": lambda: sum_gradients(task, plain, x, y, chunk)[0],
        "ours, DP2": lambda: sum_gradients(task, divided, x, y, chunk)[0],
        "ours, DP-SRM": lambda: sum_gradients(task, Query((params, near), (both,)), x, y, chunk)[0],
        "vmap": lambda: sum_rows([task.gradients(params, x, y)], plain.blocks)[0],
    }


def opacus_side(case: Case, task: Task, params: Tensor, mode: str) -> Side:
    """The clipped sum by an Opacus mode, as its optimizers compute it, as one vector."""
    module = copy.deepcopy(case.theirs)
    named = dict(module.named_parameters())
    for name, tensor in task.layout.split(params).items():
        named[name].data = tensor.clone()
    if mode in ("ghost", "fast"):
        return _in_two_passes(module, case, task, mode == "ghost")
    wrapped = wrap_model(module, mode, loss_reduction="sum")

    def total() -> Tensor:
        F.cross_entropy(wrapped(case.x), case.y, reduction="sum").backward()
        parts = {name: p.grad_sample for name, p in named.items()}
        norms = torch.stack([part.flatten(1).norm(dim=1) for part in parts.values()], 1).norm(dim=1)
        factors = (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0)
        sums = {name: torch.einsum("i,i...", factors, part) for name, part in parts.items()}
        for parameter in named.values():
            parameter.grad = parameter.grad_sample = None
        return task.layout.join(sums)

    return total


def _in_two_passes(module: nn.Module, case: Case, task: Task, ghost: bool) -> Side:
    wrapped = GradSampleModuleFastGradientClipping(
        module, loss_reduction="sum", max_grad_norm=CLIP_NORM, use_ghost_clipping=ghost
    )

    def total() -> Tensor:
        wrapped.enable_hooks()
        losses = F.cross_entropy(wrapped(case.x), case.y, reduction="none")
        losses.sum().backward(retain_graph=True)
        factors = wrapped.get_clipping_coef()
        wrapped.zero_grad()
        wrapped.disable_hooks()
        (factors * losses).sum().backward()
        sums = {name: p.grad.clone() for name, p in module.named_parameters()}
        wrapped.zero_grad()
        return task.layout.join(sums)

    return total


def sides_of(case: Case) -> dict[str, Side]:
    """All sides of the case. A mode that fails or disagrees with fedpriv is printed with the reason."""
    task = Task(case.model)
    params = task.initial(np.random.default_rng(0)).to(case.x.device)
    sides = {}
    for name, side in our_sides(task, params, case.x, case.y).items():
        try:
            side()
        except torch.OutOfMemoryError:
            print(f"  {name}: out of memory")
            continue
        sides[name] = side
    wanted = sides["ours"]()
    for mode in ("hooks", "fast", "ghost", "functorch", "ew"):
        try:
            side = opacus_side(case, task, params, mode)
            lost = float((side() - wanted).norm() / wanted.norm())
        except Exception as error:
            print(f"  Opacus {mode}: cannot ({type(error).__name__})")
            continue
        if lost > 1e-3:
            print(f"  Opacus {mode}: another sum, relative difference {lost:.0e}")
        sides[f"Opacus {mode}"] = side
    return sides


def medians(sides: dict[str, Side], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """The median seconds of each side, measured alternately."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 2):
        for name, side in sides.items():
            start = clock()
            side()
            if turn >= 2:
                times[name].append(clock() - start)
    return {name: statistics.median(several) for name, several in times.items()}


def clock_of(device: str, clock: str) -> Callable[[], float]:
    """Seconds of CPU time, or of wall time after the device has finished all work."""
    if device == "cpu":
        return time.process_time if clock == "cpu" else time.perf_counter

    def wall() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return wall


def main() -> None:
    """Runs the requested cases and prints a table for each."""
    parser = argparse.ArgumentParser(description="Times of clipped sums.")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--batches", nargs="+", type=int, default=[250, 1024])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(asked.threads)
    tune_allocator()
    on_gpu = asked.device == "cuda"
    clock = clock_of(asked.device, asked.clock)
    print(f"Python {platform.python_version()}, torch {torch.__version__}, opacus {opacus.__version__}")
    where = torch.cuda.get_device_name() if on_gpu else f"{asked.threads} threads of {os.cpu_count()} cores"
    print(f"{where}, {'wall' if on_gpu else asked.clock} time, {asked.repeats} turns")
    for name in asked.cases:
        for batch in asked.batches:
            print(f"{name}, batch {batch}")
            case = CASES[name](batch)
            models_there = {"model": case.model.to(asked.device), "theirs": case.theirs.to(asked.device)}
            case = replace(case, **models_there, x=case.x.to(asked.device), y=case.y.to(asked.device))
            found = medians(sides_of(case), asked.repeats, clock)
            for side, seconds in found.items():
                times = seconds / found["ordinary"]
                print(f"  {side:18} {1e3 * seconds:9.2f} ms {times:7.2f} {batch / seconds:12,.0f} examples/s")


if __name__ == "__main__":
    main()
