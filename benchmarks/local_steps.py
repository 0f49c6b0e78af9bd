"""FedAvg with local steps: many clients at once, compared with one client after the other.

    python benchmarks/local_steps.py                  # a minute or two on 2 cores

250 clients of 1 to 40 examples each make 5 steps of gradient descent on their own examples, 10 at a time,
from one model; their model changes are clipped and added. "One by one" is an ordinary client: a copy of the
module, torch's SGD, loss.backward(). Both are checked to agree. They are measured alternately; medians of
wall time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from turns import medians, options

from fedpriv import models
from fedpriv.federated.client_update import LocalSteps, clipped_sum
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.task import Task

CLIENTS, MOST, STEPS, BATCH, RATE, CLIP_NORM = 250, 40, 5, 10, 0.1, 0.5


def federation() -> tuple[Tensor, Tensor, Tensor]:
    """Examples x, labels y, and owners, ascending."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, MOST + 1, (CLIENTS,), generator=generator)
    owner = torch.repeat_interleave(torch.arange(CLIENTS), sizes)
    x = torch.rand(len(owner), 1, 28, 28, generator=generator)
    return x, torch.randint(10, (len(owner),), generator=generator), owner


def one_by_one(model: nn.Module, x: Tensor, y: Tensor, owner: Tensor) -> Tensor:
    """The sum of the clients' clipped model changes (d,)."""
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    total = torch.zeros_like(start)
    for client in range(CLIENTS):
        own_x, own_y = x[owner == client], y[owner == client]
        mine, size = copy.deepcopy(model), min(BATCH, len(own_x))
        optimizer = torch.optim.SGD(mine.parameters(), RATE)
        for step in range(STEPS):
            taken = [(step * size + i) % len(own_x) for i in range(size)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(mine(own_x[taken]), own_y[taken]).backward()
            optimizer.step()
        change = start - torch.cat([p.detach().flatten() for p in mine.parameters()])
        total += change * min(1.0, CLIP_NORM / float(change.norm()))
    return total


def main() -> None:
    """See the module's docstring."""
    repeats = options(__doc__, repeats=5).repeats
    x, y, owner = federation()
    work = LocalSteps(STEPS, RATE, BATCH)
    print(f"{CLIENTS} clients, {len(x)} examples, {STEPS} steps of {BATCH}")
    for name in ("logistic", "cnn", "mlp"):
        task = Task(models.build(name))
        params = task.initial(np.random.default_rng(0))
        query = Query((params,), (SumBlock((Term(CLIP_NORM),)),))
        model = models.build(name)
        with torch.no_grad():
            for key, value in task.layout.split(params).items():
                model.get_parameter(key).copy_(value)

        def ours(memory: int, task: Task = task, query: Query = query) -> Tensor:
            return clipped_sum(work, task, query, x, y, owner, CLIENTS, memory=memory)[0]

        sides: dict[str, Callable[[], Tensor]] = {
            "one by one": lambda model=model: one_by_one(model, x, y, owner),
            "ours, 512 MiB": lambda ours=ours: ours(2**29),
            "ours, 64 MiB": lambda ours=ours: ours(2**26),
        }
        want = sides["one by one"]()
        for side in sides.values():
            assert torch.linalg.vector_norm(side() - want) < 1e-3 * torch.linalg.vector_norm(want)
        taken = medians(sides, repeats)
        first = taken["one by one"]
        shown = ", ".join(f"{side} {ms:.0f} ms ({first / ms:.2f} x)" for side, ms in taken.items())
        print(f"{name} ({task.dimension:,} parameters): {shown}", flush=True)


if __name__ == "__main__":
    main()
