"""The cost of sums that agree bit for bit on any number of nodes, as a share of the clipped sum.

    python benchmarks/exact.py                  # some seconds

A node's sums are rounded to a common grid, sent and added in float64 (fedpriv/mechanism/grid.py); the
alternative sends and adds them in float32. Both encode, decode and check one reply and add it to another
node's, in one process. The sides are measured alternately; medians of wall time, batch 250.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from turns import medians, options

from fedpriv.federated.client_update import OneGradient, clipped_sum
from fedpriv.federated.engine import PartialSum, Shard, SumRequest
from fedpriv.flower.serialization import read_reply, reply_content
from fedpriv.mechanism.grid import on_grid
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.tasks.task import Task

BATCH = 250


def main() -> None:
    """See the module's docstring."""
    repeats = options(__doc__, repeats=60).repeats
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(BATCH, 1, 28, 28, generator=generator)
    y = torch.randint(10, (BATCH,), generator=generator)
    for name in ("cnn", "mlp"):
        task = Task(name)
        block = SumBlock((Term(1.0),))
        query = Query((task.initial(np.random.default_rng(0)),), (block,))
        [part] = clipped_sum(OneGradient(), task, query, x, y)

        request = SumRequest(query, 0, (Shard(0, np.arange(BATCH), BATCH),))

        def there_and_back(sums: torch.Tensor, request: SumRequest = request) -> torch.Tensor:
            return read_reply(reply_content(PartialSum((sums,), BATCH), 0), request).sums[0]

        other = on_grid(part, block, 0.0)

        def exact(part: torch.Tensor = part, block: SumBlock = block, other: torch.Tensor = other) -> object:
            return (there_and_back(on_grid(part, block, 0.0)) + other).float()

        def plain(part: torch.Tensor = part) -> object:
            return there_and_back(part) + part

        sides: dict[str, Callable[[], object]] = {
            "sum": lambda task=task, query=query: clipped_sum(OneGradient(), task, query, x, y),
            "exact": exact,
            "plain": plain,
        }
        ms = medians(sides, repeats, first=5)
        print(
            f"{name}: clipped sum {ms['sum']:.2f} ms; reply and addition {ms['plain']:.2f} ms plain, "
            f"{ms['exact']:.2f} ms exact: {(ms['exact'] - ms['plain']) / ms['sum']:.1%} of the sum"
        )


if __name__ == "__main__":
    main()
