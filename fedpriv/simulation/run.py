"""A simulated federation: a configuration, an engine on this machine, and a run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpriv._internal import ray_cluster, user_code, validation
from fedpriv.clipping import sum_gradients
from fedpriv.clipping.dropout_calls import settings_of
from fedpriv.clipping.invariance import ALONE, summed_alone
from fedpriv.config import consistency
from fedpriv.config.builders import (
    choose_device,
    make_augmentation,
    make_public,
    make_source,
    make_task,
    make_test,
    make_view,
    make_work,
)
from fedpriv.config.plan import Plan, gpu_share, make_plan, number_of_actors
from fedpriv.config.reading import read_run
from fedpriv.config.schema import Config
from fedpriv.data import Source
from fedpriv.federated.engine import Engine
from fedpriv.federated.secure_engine import LocalParties, SecureEngine, Silos
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.node.factory import make_worker
from fedpriv.node.silo import SiloEngine, make_silo_worker
from fedpriv.parameters import Layout
from fedpriv.report import notices
from fedpriv.runs import checkpoints
from fedpriv.runs.callbacks import Callback
from fedpriv.runs.checkpoints import Checkpoint
from fedpriv.runs.result import Result
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import Status, execute
from fedpriv.secure_aggregation.threshold import smallest_threshold
from fedpriv.tasks.task import Task, alike

_SOME = 16  # examples that are looked at before a run
_SMALL = 2**20  # parameters of a model whose trials take about a second


@dataclass(frozen=True)
class Checked:
    """A configuration that this machine can simulate.

    Attributes:
        layout: of the model's parameters.
        notes: what is unusual about a user's own code and not refused.
    """

    layout: Layout
    notes: tuple[str, ...] = ()

    def warnings(self, plan: Plan) -> list[str]:
        """What is unusual about a plan, from its public settings and the size of its model."""
        return [*notices.notes(plan), *notices.drowned(plan, self.layout.dimension)]


def check(config: Config, audited: bool = False) -> Checked:
    """Refuse what this machine cannot simulate: data that is not there, a model that does not fit.

    ``audited`` says whether an audit runs it, which may plant canaries.

    Raises ArgumentError or DataError; starts nothing.
    """
    if config.nodes_own_data:
        raise validation.fail("nodes-own-data", True, "be false in a simulation", "it is for deployments")
    if not audited:
        consistency.check_no_audit(config)
    source = make_source(config)
    make_view(config, source)
    _check_divided(config, source)
    task = make_task(config, source)
    make_work(config)
    make_augmentation(config, source)
    if _own_data(config):
        _check_data(config, source, make_source(config))
    if user_code.named(config.model):
        _check_model(config, source, task, make_task(config, source))
    if config.public_examples:
        make_public(config)
    device = choose_device(config.device)
    if config.test_part != "all":
        make_test(config, source, device)
    notes = (*_of_owners(config, source), *_of_unused(config, source))
    if user_code.named(config.model) and _mixes(task, source):
        note = (
            f"model {config.model} mixes examples: what it gives for one depends on those beside it; it is "
            "trained and scored on each alone, which is slow, and by which it may learn nothing"
        )
        notes = (*notes, note)
    if user_code.named(config.model) and not config.trains_locally and _sums_alone(task, source):
        notes = (*notes, f"model {config.model}: {ALONE}")
    return Checked(task.layout, notes)


def _own_data(config: Config) -> bool:
    """Whether the data set is a user's own code, or an object in memory."""
    return "dataset" in config.user_code or user_code.in_memory(config.dataset)


def _of_owners(config: Config, source: Source) -> tuple[str, ...]:
    """What is told where a person's examples may be several units, though the data says whose they are."""
    owners = source.owners
    if owners is None or config.partitioning.natural or len(np.unique(owners)) == len(owners):
        return ()
    return (
        f"{source.name} says who each example is from, and partition={config.partition} does not use it: the "
        "examples of one person may be of several units; partition=natural makes each person a client",
    )


def _of_unused(config: Config, source: Source) -> tuple[str, ...]:
    """What is told where people's own data has more examples than the clients take."""
    used = config.clients * config.examples_per_client
    divided = config.partitioning.assigned or config.partitioning.natural
    if not _own_data(config) or source.size is None or divided or used >= source.size:
        return ()
    each = f"clients={config.clients} times examples-per-client={config.examples_per_client}"
    more = "" if config.privacy_unit.in_silos else "; partition=iid divides all of them among the clients"
    return (f"{used:,} of the {source.size:,} training examples of {source.name} are used: {each}{more}",)


def _check_divided(config: Config, source: Source) -> None:
    """Refuse a number of examples for clients among whom a finite data set is divided whole."""
    divided = config.partitioning.assigned and not config.privacy_unit.in_silos
    if divided and source.size is not None and config.examples_per_client != 1:
        allowed = f"be left out: all {source.size} examples of {source.name} are divided among the clients"
        hint = f"about {source.size / config.clients:.3g} each"
        raise validation.fail("examples-per-client", config.examples_per_client, allowed, hint)


def _check_data(config: Config, source: Source, again: Source) -> None:
    """Refuse data that is other data when it is made again: what one process tests on, others train on."""
    some = np.arange(source.first, source.first + min(source.size or _SOME, _SOME))
    same = (source.size, source.first, source.shape) == (again.size, again.first, again.shape) and all(
        map(torch.equal, (*source.test(), *source.batch(some)), (*again.test(), *again.batch(some)))
    )
    if not same:
        hint = "each process calls it: draw with a generator of a fixed seed"
        raise user_code.fail("dataset", config.dataset, "give the same examples whenever it is called", hint)


def _check_model(config: Config, source: Source, task: Task, again: Task) -> None:
    """Refuse a model that is another when it is built again, or whose examples have no gradients alone."""
    one, other = task.module.state_dict(), again.module.state_dict()
    if one.keys() != other.keys() or not all(torch.equal(one[name], other[name]) for name in one):
        hint = "each process builds it: draw with torch's generator on the CPU, which is seeded"
        raise user_code.fail("model", config.model, "be the same whenever it is built", hint)
    if _draws_by_itself(config, task, source):
        hint = "functional dropout is inactive here; use nn.Dropout"
        if settings := settings_of(task.module):
            hint += f", and in the model's config set to 0 what is drawn otherwise: {settings}"
        raise user_code.fail("model", config.model, "draw by nn.Dropout layers alone", hint)
    x, y = (part[:2] for part in source.test())
    try:
        task.gradients(torch.zeros(task.dimension), x, y)
    except Exception as error:
        allowed = "have gradients for each example alone, by torch.func.vmap"
        raise user_code.fail("model", config.model, allowed, user_code.described(error)) from error


def _sums_alone(task: Task, source: Source) -> bool:
    """Whether a small model's units are computed one by one, since no batch gives equal bits at every place.

    Of a large one the trials would take too long before a run; `fedpriv bench` makes them.
    """
    if task.dimension > _SMALL:
        return False
    x, y, *_ = source.test()
    query = Query((task.initial(np.random.default_rng(0)),), (SumBlock((Term(1.0),)),))
    sum_gradients(task, query, x[:_SOME], y[:_SOME])
    return summed_alone(task)


def _draws_by_itself(config: Config, task: Task, source: Source) -> bool:
    """Whether the model draws in training from torch's generator, where no example's seed decides.

    Raises ArgumentError where it cannot be called in training mode.
    """
    module, dropout = copy.deepcopy((task.module, task.dropout))
    module.float().train()  # in float32, as the task has it
    for layer in dropout.calling:
        layer.training = False
    x = source.test()[0][:2]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        try:
            module(x)
            if dropout.calling:
                with task.dropout.seeded(torch.arange(len(x))):
                    task.outputs(task.initial(np.random.default_rng(0)), x)
        except Exception as error:
            hint = user_code.described(error)
            raise user_code.fail("model", config.model, "work in training mode too", hint) from error
        return not torch.equal(before, torch.get_rng_state())


@torch.no_grad()
def _mixes(task: Task, source: Source) -> bool:
    """Whether test examples' outputs are others without those beside them, where training begins, or beside
    others, after moves up or down, which open what may be shut there (a last layer of zeros, say)."""
    x, generator = source.test()[0][:_SOME], np.random.default_rng(0)
    start, own = task.initial(generator), len(x) // 2
    if not task.apart(start, x):
        return True
    # In batches of one shape, which are rounded alike, however much moved parameters make of that.
    beside = torch.cat([x[:own], x[:1].expand(len(x) - own, *x.shape[1:])])
    move = torch.as_tensor(generator.standard_normal(task.dimension)).to(start)
    points = (start + move, start - move)
    return not all(alike(task.outputs(at, x)[:own], task.outputs(at, beside)[:own]) for at in points)


def secured(config: Config, silos: Silos) -> SecureEngine:
    """The engine of a run with secure aggregation in this process; ``silos`` answers for each silo."""
    threshold = config.min_replies or smallest_threshold(config.clients)
    return SecureEngine(LocalParties(silos, config.clients, threshold), threshold)


def make_engine(config: Config) -> Engine | SiloEngine:
    """The engine that the configuration names, started.

    Raises ArgumentError or GridError where the settings do not fit this machine.
    """
    if config.in_process and not config.by_silo:
        worker = make_worker(config.table())
        return secured(config, worker) if config.aggregates_securely else worker
    if config.in_process:
        return make_silo_worker(config.table())
    with warnings.catch_warnings():
        # Ray imports tqdm, if it is installed, which warns in a notebook without widgets.
        warnings.filterwarnings("ignore", "IProgress not found")
        from fedpriv.flower.grid_engine import GridEngine
        from fedpriv.flower.grids.ray import RayGrid
        from fedpriv.flower.secure_parties import secured_over

    if ray_cluster.resources():
        ray_cluster.require_ready(lambda: make_source(config))
    grid = RayGrid(
        number_of_actors(config),
        config.table(),
        num_cpus=config.cpus_per_actor,
        num_gpus=gpu_share(config),
        # Silos keep their optimizers' state, and parties of secure aggregation their keys.
        stateless=not (config.by_silo or config.aggregates_securely),
    )
    engine = GridEngine(grid, reply_timeout=config.reply_timeout)
    return secured_over(config, engine) if config.aggregates_securely else engine


def simulate(
    config: Config | Mapping[str, Any],
    show: Callable[[Status], None] = lambda status: None,
    folder: RunFolder | str | Path | None = None,
    plan: Plan | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run the configured federation on this machine.

    Args:
        config: all settings, or those that are not as by default, by key.
        show: called after each round with what may be shown.
        folder: where outputs go, made where a path is given; None keeps them in memory.
        plan: the configuration's plan, where it was made before, and the configuration checked.
        callbacks: called with public values (:mod:`fedpriv.runs.callbacks`).

    Raises ArgumentError or DataError, before any work, as :func:`check` and ``make_plan`` do.
    """
    if not isinstance(folder, RunFolder | str | Path | None):
        raise validation.fail("folder", folder, "be a path, a RunFolder or None")
    config = config if isinstance(config, Config) else Config.parse(config)
    if plan is None:
        check(config)
        plan = make_plan(config)
    if isinstance(folder, str | Path):
        folder = RunFolder.create(folder, plan.config.overwrite)
    return execute(plan, make_engine(plan.config), folder, show, callbacks=callbacks)


def resumed(folder: Path) -> tuple[Plan, Checkpoint, Checked]:
    """What the run in ``folder`` is resumed by: its plan, where it continues, and what :func:`check` gives.

    Raises ArgumentError or LedgerError where it cannot be resumed (:func:`fedpriv.runs.checkpoints.read`).
    """
    config = Config.parse(read_run(folder))
    if config.nodes_own_data:
        hint = "its nodes have the data; `fedpriv deploy resume` continues a deployment's run"
        raise validation.fail("FOLDER", str(folder), "hold a run that this machine simulated", hint)
    plan = make_plan(config)
    checkpoint = checkpoints.read(folder, plan)
    checked = check(config)
    if checkpoint.changed:
        checkpoint.require_model(config, checked.layout)
    return plan, checkpoint, checked
