"""A node's side of a run: the virtual clients it hosts, and their one bounded sum.

The same object answers in every engine. In a simulation any node computes any client, because data is
addressed by index; in a deployment a node owns one data file and answers for its own partition alone.
A node adds its parties' noise itself, from its own entropy, before anything leaves it; each answer has
entropy of its own, so that no two answers, and no two runs that one process serves, can share noise. Only
a simulation takes it from the run's seed, and a node that owns its data where its owner says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv import _check, clipping, data, models, user_code
from fedpriv.baselines import PublicGradient, split
from fedpriv.clients import MEMORY, LocalSteps, OneGradient, Work, clipped_sum
from fedpriv.clipping.drawing import example_seeds
from fedpriv.config import Config
from fedpriv.data import View
from fedpriv.data.client_files import ClientFile, FileView
from fedpriv.exact import on_grid
from fedpriv.losses import TARGETS
from fedpriv.query import Query, SumBlock, Term
from fedpriv.release import add_party_noise
from fedpriv.rng import Key
from fedpriv.round import Ask, Chunk, Reply
from fedpriv.tasks import Task

_MAKING = 8  # copies of an example that making it may take at once


class Units(Protocol):
    """Unit numbers -> their examples."""

    def batch(self, client_ids: data.Indices, device: torch.device | str = "cpu") -> data.Batch:
        """The examples (x, y) of the units and the owners' positions in ``client_ids``."""


@dataclass(frozen=True)
class SiloFile:
    """The examples of one silo's own file, as units of the federation's numbering."""

    file: FileView
    silos: data.Silos

    def batch(self, client_ids: data.Indices, device: torch.device | str = "cpu") -> data.Batch:
        """See :class:`Units`; a unit that lies elsewhere, or beyond the file, has no examples."""
        return self.file.units(self.silos, client_ids, device)


@dataclass(frozen=True)
class ClientSide:
    """Answers asks for the units it holds.

    Attributes:
        task: the model and loss.
        work: what a client computes.
        view: unit numbers -> examples.
        key: where this node's noise comes from if it is reproducible; else each answer has a fresh one.
        device: where it computes.
        own: the only silo or client it may answer for, or None in a simulation.
        memory: bytes that it may use at once for examples and what is computed of them.
        unit_memory: bytes that making one unit's examples takes, on average.
        noisy: whether noise will be added. Without, sums are not rounded to a grid (:mod:`fedpriv.exact`),
            which a large clip norm, that stands for none, would make coarse.
        exact: whether the noise that it adds for parties is exact (:mod:`fedpriv.rounded`).
    """

    task: Task
    work: Work
    view: Units
    key: Key
    device: torch.device
    own: int | None = None
    memory: int = MEMORY
    unit_memory: int = 1
    noisy: bool = True
    exact: bool = False

    def answer(self, ask: Ask) -> Reply:
        """The bounded sums (float64) over the ask's chunks, with the parties' noise where they add it."""
        query = moved(ask.query, self.device)
        key = self.key if self.key.reproducible else Key.fresh()
        owed = ask.party_stds or (0.0,) * len(query.blocks)

        def part(chunk: Chunk) -> tuple[Tensor, ...]:
            sums = self._chunk_sums(query, chunk, key.integer("draws", ask.release))
            if ask.party_stds is not None:
                draw = key, ask.release, chunk.index, query.blocks if self.exact else ()
                sums = add_party_noise(sums, ask.party_stds, chunk.parties, *draw)
                if self.exact:
                    return sums
            if not self.noisy:
                return tuple(total.double() for total in sums)
            return tuple(map(on_grid, sums, query.blocks, owed))

        # With noise parts are added without rounding, so that how they are dealt to nodes does not show.
        totals = clipping.added(map(part, ask.chunks)) or tuple(total.double() for total in zeros(query))
        return Reply(tuple(total.cpu() for total in totals), sum(chunk.parties for chunk in ask.chunks))

    def _chunk_sums(self, query: Query, chunk: Chunk, seed: int) -> tuple[Tensor, ...]:
        if self.own is not None and chunk.home != self.own:
            raise _check.fail("partition", chunk.home, f"be this node's own, {self.own}")
        if not len(chunk.ids):
            return zeros(query)
        pieces = np.array_split(chunk.ids, -(-len(chunk.ids) * self.unit_memory // self.memory))
        return clipping.added(self._units_sums(query, ids, seed) for ids in pieces)

    def _units_sums(self, query: Query, ids: data.Indices, seed: int) -> tuple[Tensor, ...]:
        x, y, owner = self.view.batch(ids, self.device)
        seeds = _seeds(seed, ids, owner.cpu()) if self.task.drawing.draws else None
        arguments = (self.work, self.task, query, x, y, owner, len(ids))
        return clipped_sum(*arguments, memory=self.memory, seeds=seeds)

    def gather(self, ask: Ask) -> Reply:
        """The engine that is this process alone."""
        return self.answer(ask).to(ask.query)

    def close(self) -> None:
        """Nothing to release."""


def _seeds(seed: int, ids: data.Indices, owner: Tensor) -> Tensor:
    """What dropout draws by for each example of the units ``ids``: by unit, and by place in it."""
    counts = torch.bincount(owner, minlength=len(ids))
    places = torch.arange(len(owner)) - (torch.cumsum(counts, 0) - counts)[owner]
    return example_seeds(seed, torch.from_numpy(np.asarray(ids, np.int64))[owner], places)


def zeros(query: Query) -> tuple[Tensor, ...]:
    """The sums over no unit: one tensor per block, on the points' device."""
    return clipping.zeros(query.blocks, query.points[0])


def moved(query: Query, device: torch.device) -> Query:
    """The query with its points and divisors on ``device``."""
    if query.points[0].device == device:
        return query

    def term(t: Term) -> Term:
        return t if t.divisor is None else replace(t, divisor=t.divisor.to(device))

    blocks = tuple(
        replace(block, terms=tuple(term(t) for t in block.terms))
        if isinstance(block, SumBlock)
        else replace(block, term=term(block.term))
        for block in query.blocks
    )
    points = tuple(point.to(device) for point in query.points)
    return replace(query, points=points, blocks=blocks)


def make_task(config: Config, source: data.Source) -> Task:
    """The task that the configuration names, for what the source's examples are and its target is.

    Raises ArgumentError where the model does not suit them.
    """
    model = models.build(config.model, source.shape, source.classes, source.tokens, max(0, config.seed))
    for key, default in (("input-mean", 0.0), ("input-std", 1.0)):
        if source.tokens and config.table()[key] != default:
            raise _check.fail(key, config.table()[key], f"be {default:g}: {source.name} is of tokens")
    if (config.input_mean, config.input_std) != (0.0, 1.0):
        model = models.Standardised(model, config.input_mean, config.input_std)
    task = Task(model, TARGETS[source.target], config.precision)
    _check_outputs(config, source, task)
    return task


def _check_outputs(config: Config, source: data.Source, task: Task) -> None:
    """Raises ArgumentError unless the model's outputs are what the loss of the target takes."""
    x = torch.zeros(1, *source.shape, dtype=torch.int64 if source.tokens else torch.float32)
    try:
        outputs = task.outputs(torch.zeros(task.dimension), x)
    except Exception as error:
        allowed = f"take inputs (n, {', '.join(map(str, source.shape))}), as {source.name} has them"
        raise user_code.fail("model", config.model, allowed, user_code.said(error)) from error
    if not isinstance(outputs, Tensor):
        hint = f"it gives {type(outputs).__name__}"
        raise user_code.fail("model", config.model, "give one tensor (n, ...)", hint)
    suited: dict[str, set[tuple[int, ...]]] = {
        "label": {(source.classes,), (1,)} if source.classes == 2 else {(source.classes,)},
        "value": {(), (1,)},
        "tags": {(source.classes,)},
    }
    if tuple(outputs.shape[1:]) not in suited[source.target]:
        number = 1 if source.target == "value" else source.classes
        allowed = f"have {number} outputs for the {source.target} of {source.name}"
        raise _check.fail("model", config.model, allowed)


def make_work(config: Config) -> Work:
    """What a client computes."""
    if config.work == "gradient":
        return OneGradient()
    if config.precision != "float32":
        raise _check.fail("precision", config.precision, f"be float32 with work {config.work}")
    return LocalSteps(config.local_steps, config.local_learning_rate, config.local_batch_size or None)


def make_source(config: Config) -> data.Source:
    """The configured data set. Raises ArgumentError or DataError where it is not to be had."""
    return data.load(
        config.dataset,
        config.data_folder or None,
        image_size=config.image_size,
        vocabulary=config.vocabulary,
        sequence_length=config.sequence_length,
    )


def make_public(config: Config) -> PublicGradient:
    """The gradient on the configured public examples. Raises ArgumentError, or as ``make_source``."""
    source = make_source(config)
    examples, _ = split(source.test(), config.public_examples)
    return PublicGradient(make_task(config, source), examples, config.public_batch)


def make_test(config: Config, source: data.Source, device: torch.device) -> data.Pair:
    """The test examples that the model is evaluated on: not those that the optimizer learns from."""
    test = source.test(device)
    return split(test, config.public_examples)[1] if config.public_examples else test


def make_view(config: Config, source: data.Source) -> View:
    """Unit numbers -> examples, for the configured unit and partition.

    Raises ArgumentError where the source has fewer examples than the clients need.
    """
    population = data.population(
        "silos" if config.unit == "example" else config.partition,
        source,
        clients=config.clients,
        examples_per_client=config.examples_per_client,
        sizes=config.client_sizes,
        alpha=config.dirichlet_alpha,
        labels_per_client=config.labels_per_client,
        seed=config.partition_seed,
    )
    return View(source, population.units() if isinstance(population, data.Silos) else population)


def choose_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one. Raises ArgumentError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _check.choice("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise _check.fail("device", name, "be cpu or auto here", "torch finds no GPU")
    return torch.device(name)


def client_side(run_config: Mapping[str, Any], node_config: Mapping[str, Any] | None = None) -> ClientSide:
    """The client side that a node runs, from its public configuration.

    Args:
        run_config: the run's flat configuration.
        node_config: the node's own: ``partition-id``, and ``data-file`` where it owns its data. There the
            run's seed, which the server chose, counts only with ``accept-seed=true``: who holds the seed
            can subtract the noise.
    """
    config = Config.parse(dict(run_config))
    node = dict(node_config or {})
    source = make_source(config)
    own = _own_partition(config, node)
    seeded = config.seed >= 0 and (own is None or node.get("accept-seed") is True)
    return ClientSide(
        task=make_task(config, source),
        work=make_work(config),
        view=make_view(config, source) if own is None else _own_view(config, source, node, own),
        key=Key.of(config.seed if seeded else None),
        device=choose_device(config.device),
        own=own,
        memory=config.memory_budget * 2**20,
        unit_memory=_unit_memory(config, source),
        noisy=config.placement != "none",
        exact=config.exact_noise,
    )


def _unit_memory(config: Config, source: data.Source) -> int:
    """Bytes that making one unit's examples takes, on average: _MAKING copies of each."""
    each = 1
    if config.unit == "client" and config.partition != "one-example":  # a finite source is divided whole
        each = -(-source.size // config.clients) if source.size else config.examples_per_client
    return _MAKING * each * math.prod(source.shape) * (8 if source.tokens else 4)


def _own_partition(config: Config, node: Mapping[str, Any]) -> int | None:
    if not config.nodes_own_data:
        return None
    for name in ("partition-id", "data-file"):
        if name not in node:
            raise _check.ArgumentError(
                f"this node has no {name}; start the SuperNode with --node-config "
                "'partition-id=0 num-partitions=2 data-file=\"/path/to/file.npz\"'"
            )
    return _check.integer("partition-id", node["partition-id"])


def _own_view(config: Config, source: data.Source, node: Mapping[str, Any], own: int) -> Units:
    file = FileView(ClientFile(node["data-file"], source), own)
    if config.unit == "client":
        return file
    return SiloFile(file, data.Silos(config.clients, config.examples_per_client))


def initial_params(task: Task, key: Key) -> Tensor:
    """The first parameter vector (d,), from the server's key."""
    return task.initial(key.generator("initial-params"))
