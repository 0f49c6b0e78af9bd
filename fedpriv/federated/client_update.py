"""A virtual client's vector, and the bounded sum over many clients at once.

A client's vector at a point theta is either the gradient of its mean loss (:class:`OneGradient`, Fed-SGD) or
its model change after some local steps (:class:`LocalSteps`, the pseudo-gradient of FedAvg, McMahan et al.
2018). Vectors are never weighted by the number of a client's examples. If units are examples, each example is
a client.

>>> import numpy as np, torch
>>> from fedpriv.mechanism.query import Query
>>> from fedpriv.mechanism.query import SumBlock
>>> from fedpriv.mechanism.query import Term
>>> from fedpriv.tasks.task import Task
>>> task = Task("logistic")
>>> query = Query((task.initial(np.random.default_rng(0)),), (SumBlock((Term(clip_norm=0.5),)),))
>>> x, y = torch.ones(3, 1, 28, 28), torch.tensor([1, 2, 3])
>>> total, = clipped_sum(OneGradient(), task, query, x, y)
>>> total.shape, bool(total.norm() <= 3 * 0.5)
(torch.Size([7850]), True)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv._internal.memory import bytes_per_unit
from fedpriv.clipping import added, sum_gradients, sum_rows, zeros
from fedpriv.clipping.alignment import aligned_products
from fedpriv.clipping.dropout import example_seeds, hash_seeds, select
from fedpriv.clipping.ghost.clipped_sum import terms_of
from fedpriv.clipping.invariance import Trials
from fedpriv.clipping.precision import Precision, computing
from fedpriv.clipping.units import Units
from fedpriv.federated.own_kernels import own_kernels
from fedpriv.mechanism.query import Query
from fedpriv.rng import Key
from fedpriv.tasks.task import Task


@dataclass(frozen=True)
class OneGradient:
    """A = the gradient of the client's mean loss at the point.

    Attributes:
        precision: that of the passes of ghost clipping (:mod:`fedpriv.clipping.precision`).
    """

    precision: Precision = "float32"


@dataclass(frozen=True)
class LocalSteps:
    """A = theta - theta_K after K steps of gradient descent from theta on the client's own examples.

    Step k uses the client's examples k b .. k b + b - 1, counted cyclically, where b is the smaller of the
    batch size and the client's number of examples. The order is fixed, so that the vector is a function of
    the client's data and the public state alone, bit for bit. Many steps can amplify rounding, and rounding
    depends on the shapes of tensors. Therefore a client is padded to a length that depends on its own number
    of examples only, and clients are computed together in numbers for which a trial found the same bits at
    every place (:mod:`fedpriv.clipping.invariance`), else alone.

    Attributes:
        steps: K, at least 1.
        learning_rate: the local step size.
        batch_size: examples per step, or None for all of the client's.
    """

    steps: int
    learning_rate: float
    batch_size: int | None = None

    def __post_init__(self) -> None:
        validation.integer("local steps", self.steps, minimum=1)
        validation.finite_positive("local learning rate", self.learning_rate)
        if self.batch_size is not None:
            validation.integer("local batch size", self.batch_size, minimum=1)


Work = OneGradient | LocalSteps

MEMORY = 2**29  # default limit in bytes for the clients that are computed at once
_GROUPS = 4  # of sequences of similar length
_CACHED_ENTRIES = 2**22  # entries of the models that a CPU trains at once, so that they fit its cache
_LEAST_CLIENTS = 8  # clients that a CPU trains at once at least, even with large models
_LEAST_BATCH = 2  # clients that are computed at once at least
_CPU_CHUNK = 1024  # examples; on a CPU, larger chunks are not faster

# Bytes per client and per example, by task and by all quantities that they depend on.
_costs: WeakKeyDictionary[Task, dict[Hashable, tuple[int, int]]] = WeakKeyDictionary()


def clipped_sum(
    work: Work,
    task: Task,
    query: Query,
    x: Tensor,
    y: Tensor,
    owner: Tensor | None = None,
    units: int | None = None,
    chunk: int | None = None,
    memory: int = MEMORY,
    seeds: Tensor | None = None,
    exact: bool = False,
) -> tuple[Tensor, ...]:
    """The query's bounded sums over the clients' vectors.

    Args:
        work: the computation of a client at each of the query's points.
        task: the model and its loss.
        query: the points (d,) and the blocks.
        x, y: the clients' examples (n, ...) and labels (n, ...), on the points' device.
        owner: int64 (n,), ascending: the client, 0 .. units - 1, of each example. None makes each example a
            unit.
        units: the number of clients. Clients without examples add zero to every block: an absent client and
            one without data may differ by at most a block's sensitivity.
        chunk: the most clients that are computed at once. It changes the rounding of the sum only.
        memory: limit in bytes, besides the model, for the clients that are computed at once. A client's
            memory is measured on synthetic examples. If one client exceeds the limit, its examples are split.
        seeds: int64 (n,), the dropout seed of each example (:func:`fedpriv.clipping.dropout.example_seeds`);
            None: from OS entropy if the model has dropout.
        exact: whether clients are added in float64, as exact noise needs it.

    Returns:
        for each block a tensor: (d,) for a SumBlock, () for an IndicatorBlock; float64 where chunks were
        added or ``exact``, else of the points' dtype. A client whose vector is not finite adds zero to a
        SumBlock and -1/2 to an IndicatorBlock.

    Raises:
        ArgumentError: owner is not ascending, or has a client outside 0 .. units - 1.
    """
    sizes = _sizes(x, y, owner, units)
    seeds = _seeds(task, x, seeds)
    client, example = _cost(work, task, query, x, y, seeds)
    if isinstance(work, OneGradient) and bool((sizes <= 1).all()):
        fits = max(1, memory // (client + example))
        if x.device.type == "cpu":
            fits = min(fits, _CPU_CHUNK)
        fits = min(fits, chunk or fits)
        # An example's dropout mask must not depend on the length of the others, so none are cut.
        if not task.right_padded or task.dropout.draws:
            return sum_gradients(task, query, x, y, fits, seeds=seeds, precision=work.precision, exact=exact)
        sums = functools.partial(sum_gradients, task, query, precision=work.precision, exact=exact)
        return added(sums(x[own, :end], y[own], fits) for own, end in by_length(x))

    sum_dtype = torch.float64 if exact else None

    def together(positions: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
        copies = 2 if isinstance(work, LocalSteps) else 1  # a single client is computed twice
        if len(counts) == 1 and copies * (client + example * positions.shape[1]) > memory:
            own = slice(int(positions[0, 0]), int(positions[0, 0] + counts))
            mine, size = (x[own], y[own], select(seeds, own)), max(1, memory // example)
            limit = None if task.whole_clients else size
            rows = [_vector_of_one(work, task, point, *mine, limit)[None] for point in query.points]
            return sum_rows(rows, query.blocks, task.layout.layer_sizes, sum_dtype)
        index = positions.to(x.device)
        batch = x[index], y[index], counts, select(seeds, index)
        return _sum_at_once(work, task, query, *batch, sum_dtype=sum_dtype)

    most = chunk or len(sizes)
    if isinstance(work, LocalSteps) and x.device.type == "cpu":
        most = min(most, max(_LEAST_CLIENTS, _CACHED_ENTRIES // task.dimension))
    chunks = _chunks(sizes, _rows(work, task, sizes), client, example, most, memory)
    return added(itertools.starmap(together, chunks)) or zeros(query.blocks, query.points[0])


def _seeds(task: Task, x: Tensor, given: Tensor | None) -> Tensor | None:
    """The examples' seeds on their device; None where the model has no dropout."""
    if not task.dropout.draws:
        return None
    if given is None:
        given = example_seeds(Key.fresh().integer("draws"), torch.arange(len(x)))
    return given.to(x.device)


def _vector_of_one(
    work: Work,
    task: Task,
    point: Tensor,
    x: Tensor,
    y: Tensor,
    seeds: Tensor | None,
    batch_limit: int | None = None,
) -> Tensor:
    """One client's vector (d,) by ordinary backward passes over at most ``batch_limit`` examples each."""

    def gradient(params: Tensor, x: Tensor, y: Tensor, seeds: Tensor | None) -> Tensor:
        leaf, total = params.detach().clone().requires_grad_(), torch.zeros_like(params)
        for start in range(0, len(x), batch_limit or len(x)):
            part = slice(start, start + (batch_limit or len(x)))
            with task.dropout.seeded(select(seeds, part)), computing("float32", x.device):
                loss = task.losses(leaf, x[part], y[part]).sum() / len(x)
                total += torch.autograd.grad(loss, leaf)[0]
        return total

    if isinstance(work, OneGradient):
        return gradient(point, x, y, seeds)
    params, size = point, len(x)
    batch = min(work.batch_size or size, size)
    for step in range(work.steps):
        first = step * batch % size
        own = slice(0, size) if batch == size else [(first + i) % size for i in range(batch)]
        drawn = None if seeds is None else hash_seeds(seeds[own], step)
        params = params - work.learning_rate * gradient(params, x[own], y[own], drawn)
    return point - params


def _mean_weights(longest: int, counts: Tensor, like: Tensor) -> Tensor:
    """The weight of each example in its client's mean, (c, longest): 1/count, and 0 for padding."""
    own = torch.arange(longest) < counts[:, None]
    return (own.to(like.dtype) / counts[:, None]).to(like.device)


def _sum_at_once(
    work: Work,
    task: Task,
    query: Query,
    x: Tensor,
    y: Tensor,
    counts: Tensor,
    seeds: Tensor | None,
    padded: bool = True,
    sum_dtype: torch.dtype | None = None,
) -> tuple[Tensor, ...]:
    """The bounded sums over c clients in one chunk.

    Args:
        x, y: each client's examples (c, longest, ...), repeated cyclically up to the longest.
        counts: each client's number of examples without repetitions, int64 (c,) on the CPU, at least 1.
        seeds: the examples' dropout seeds, (c, longest), or None.
        padded: whether small batches are padded with copies; only measurements of memory switch it off.
        sum_dtype: the dtype in which clients are added; None: the points'.
    """
    if isinstance(work, LocalSteps):
        clients, layers = _Clients(work, task, query), task.layout.layer_sizes
        units = Units(x, y, None, seeds)
        rows = clients.changes(units, counts) if padded else clients.at_once(units, counts)
        return sum_rows(rows, query.blocks, layers, sum_dtype)
    weights = _mean_weights(x.shape[1], counts, query.points[0])
    own, exact = (x, y, len(x), weights, seeds, padded), sum_dtype is not None
    return sum_gradients(task, query, *own, work.precision, exact)


@dataclass(frozen=True)
class _Clients:
    """The model changes of clients, whose bits do not depend on the other clients."""

    work: LocalSteps
    task: Task
    query: Query

    def changes(self, units: Units, counts: Tensor) -> list[Tensor]:
        """The changes (c, d) at each point, in batches that pass their trial, else one by one."""

        def evidence(units: Units, query: Query) -> list[Tensor]:
            longest = torch.full((len(units.x),), units.x.shape[1])
            return replace(self, work=replace(self.work, steps=1), query=query).at_once(units, longest)

        longest = units.x.shape[1]
        first = slice(0, min(longest, self.work.batch_size or longest))  # all steps have this shape
        shown = Units(units.x[:, first], units.y[:, first], None, select(units.seeds, (slice(None), first)))
        trials = Trials(self.task, self.query, shown, repr(self.work), evidence)
        batches, parts, at = trials.batches(_LEAST_BATCH, step=_LEAST_BATCH), list[list[Tensor]](), 0
        if batches is None:
            return [self._alone(point, units, counts) for point in self.query.points]
        for size in trials.sizes(batches, len(units.x), len(units.x) + _LEAST_BATCH):
            own = slice(at, at + size)
            numbers = counts[own]
            numbers = torch.cat([numbers, numbers[:1].expand(size - len(numbers))])
            with aligned_products(batches.aligned):
                rows = self.at_once(units.at(own).padded(size), numbers)
            parts.append([each[: len(counts[own])] for each in rows])
            at += size
        return [torch.cat(several) for several in zip(*parts, strict=True)]

    def at_once(self, units: Units, counts: Tensor) -> list[Tensor]:
        """The changes (c, d) at each point, in one batch."""
        batch = units.x, units.y, counts, units.seeds
        return [_changes(self.work, self.task, point, *batch) for point in self.query.points]

    def _alone(self, point: Tensor, units: Units, counts: Tensor) -> Tensor:
        rows = []
        for i, count in enumerate(counts.tolist()):
            one = units.at(slice(i, i + 1)).padded(1)
            x, y, seeds = one.x[0, :count], one.y[0, :count], None if one.seeds is None else one.seeds[0]
            own = None if seeds is None else seeds[:count]
            rows.append(_vector_of_one(self.work, self.task, point, x, y, own))
        return torch.stack(rows)


def _changes(
    work: LocalSteps,
    task: Task,
    point: Tensor,
    x: Tensor,
    y: Tensor,
    counts: Tensor,
    seeds: Tensor | None,
) -> Tensor:
    """The model changes (c, d) of c clients at once; arguments as for :func:`_sum_at_once`."""

    def loss(
        tensors: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor, seeds: Tensor | None = None
    ) -> Tensor:
        with task.dropout.seeded(seeds):
            return (task.losses_at(tensors, x, y) * weights).sum()

    gradients = torch.func.vmap(torch.func.grad(loss))
    clients, longest = x.shape[:2]
    batches = counts.clamp(max=work.batch_size or longest)
    own = torch.arange(min(work.batch_size or longest, longest), device=x.device)
    weights = _mean_weights(len(own), batches, point)
    each = torch.arange(clients, device=x.device)[:, None]
    start = task.layout.split(point)
    mine = {name: tensor.repeat(clients, *(1,) * tensor.dim()) for name, tensor in start.items()}
    lengths, ends = (numbers[:, None].to(x.device) for numbers in (batches, counts))
    for step in range(work.steps):
        batch = (step * lengths + own) % ends
        drawn = () if seeds is None else (hash_seeds(seeds[each, batch], step),)
        with own_kernels(task.module, x.device), computing("float32", x.device):
            slopes = gradients(mine, x[each, batch], y[each, batch], weights, *drawn)
        for name, tensor in mine.items():
            tensor.sub_(slopes[name], alpha=work.learning_rate)
    changes = [tensor.neg_().add_(start[name]).reshape(clients, -1) for name, tensor in mine.items()]
    return torch.cat(changes, 1)


def _cost(
    work: Work, task: Task, query: Query, x: Tensor, y: Tensor, seeds: Tensor | None = None
) -> tuple[int, int]:
    """The memory in bytes per client and per example, measured once on synthetic examples."""
    terms = tuple((t.at, t.divisor is None, t.needs_rows) for t in terms_of(query.blocks))
    inputs = tuple((t.shape[1:], t.dtype, t.device) for t in (query.points[0][None], x, y))
    known = _costs.setdefault(task, {})
    key = (work, len(query.points), terms, inputs, seeds is None)
    if key not in known:
        once = (
            replace(work, steps=1) if isinstance(work, LocalSteps) else work
        )  # one step needs as much as all

        def compute(clients: int, each: int) -> None:
            made_up, labels = (t.new_zeros((clients, each, *t.shape[1:])) for t in (x, y))
            counts = torch.full((clients,), each)
            drawn = None if seeds is None else seeds.new_zeros(clients, each)
            _sum_at_once(once, task, query, made_up, labels, counts, drawn, padded=False)

        both = bytes_per_unit(lambda clients: compute(clients, 1))
        example = bytes_per_unit(lambda examples: compute(1, examples))
        known[key] = (max(0, both - example), example)
    return known[key]


@dataclass(frozen=True)
class _Rows:
    """The clients' rows of a batch, int64 (n,) each.

    Attributes:
        used: the examples that the work takes: the first ones, where its steps do not reach the others.
        lengths: the same with padding.
        computed: the examples of one pass, with padding. Rounding depends on them, so that they follow from a
            client's own size alone.
    """

    used: Tensor
    lengths: Tensor
    computed: Tensor


def _rows(work: Work, task: Task, sizes: Tensor) -> _Rows:
    if isinstance(work, OneGradient):
        lengths = padded(sizes)
        return _Rows(sizes, lengths, lengths)
    batch = work.batch_size
    used = sizes if batch is None else sizes.clamp(max=work.steps * batch)
    lengths = padded(used)
    if task.whole_clients:  # a loss of all examples must not see padding; batches of one size have none
        lengths = used if batch is None else torch.where(used < batch, used, lengths)
    return _Rows(used, lengths, lengths if batch is None else lengths.clamp(max=batch))


def _chunks(
    sizes: Tensor, rows: _Rows, client: int, example: int, most: int, memory: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of the clients with examples, in order of size: ``(positions, counts)``.

    ``positions`` (c, longest) are the indices of each client's examples in the batch. A row is padded with
    the client's own examples, repeated cyclically, so that padding is never an input from elsewhere.
    ``counts`` (c,) are the numbers of examples that the clients use. All clients of a chunk compute equal
    numbers of examples. A chunk has at most ``most`` clients, and needs at most ``memory`` bytes unless it is
    a single client.
    """
    starts = torch.cumsum(sizes, 0) - sizes
    order = torch.argsort(sizes, stable=True)
    order = order[sizes[order] > 0]
    at = 0
    while at < len(order):
        left = order[at : at + most]
        numbers, lengths, computed = torch.arange(1, len(left) + 1), rows.lengths[left], rows.computed[left]
        fits = (numbers * (client + example * lengths) <= memory) & (computed == computed[0])
        chosen = left[: max(1, int(fits.cumprod(0).sum()))]
        counts = rows.used[chosen]
        cycle = torch.arange(int(rows.lengths[chosen].max())) % counts[:, None]
        yield starts[chosen][:, None] + cycle, counts
        at += len(chosen)


def padded(sizes: Tensor) -> Tensor:
    """Numbers of examples, int64 (n,), rounded up; there are eight rounded values per octave.

    >>> padded(torch.tensor([0, 1, 8, 15, 17, 33, 1000])).tolist()
    [0, 1, 8, 15, 18, 36, 1024]
    """
    exponents = torch.frexp((sizes - 1).clamp(min=1).double()).exponent - 4
    steps = 2 ** exponents.clamp(min=0)
    return -(-sizes // steps) * steps


def _sizes(x: Tensor, y: Tensor, owner: Tensor | None, units: int | None) -> Tensor:
    """The number of examples of each client, int64 (units,) on the CPU."""
    if len(x) != len(y):  # the numbers are private, so the error leaves them out
        raise validation.fail("labels", "...", "be as many as the examples")
    if owner is None:
        if units is not None:
            raise validation.fail("units", "...", "be left out where each example is a unit")
        return torch.ones(len(x), dtype=torch.int64)
    owner = owner.cpu()
    count = (int(owner[-1]) + 1 if len(owner) else 0) if units is None else units
    ordered = len(owner) < 2 or bool((owner[1:] >= owner[:-1]).all())
    inside = not len(owner) or 0 <= int(owner[0]) <= int(owner[-1]) < count
    if owner.shape != x.shape[:1] or not ordered or not inside:
        allowed = "ascend within 0 .. units - 1, one for each example"
        raise validation.fail("owner", "...", allowed)
    return torch.bincount(owner, minlength=count)


def by_length(x: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Groups of sequences of similar length.

    A sequence's group follows from its own length alone: rounding depends on the length that sequences are
    cut to, which must not depend on the others.

    Args:
        x: sequences (n, L), padded with 0 on the right.

    Yields:
        positions in x, int64 (c,), and a length of at least 1 and at most L, beyond which these sequences are
        padding: a multiple of L / 4. There is at least one group.
    """
    reach = ((x != 0) * torch.arange(1, x.shape[1] + 1, device=x.device)).amax(1)
    ends = [-(-x.shape[1] * part // _GROUPS) for part in range(1, _GROUPS + 1)]
    group = torch.searchsorted(torch.tensor(ends), reach.cpu())
    for number, end in enumerate(ends):
        own = torch.nonzero(group == number).flatten().to(x.device)
        if len(own) or (not len(x) and number == 0):
            yield own, end
