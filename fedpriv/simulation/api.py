"""The front door's runs: ``fedpriv.simulate``, ``fedpriv.train``, ``fedpriv.compare`` and ``fedpriv.audit``.

Settings are keyword arguments, the same as on the command line with underscores for hyphens; data, model and
optimizer may be objects. An object stays in this process: it is never pickled, so such a run computes here
(``engine="in-process"``), and not in Ray's actors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpriv._internal import hints, user_code, validation
from fedpriv._internal.settings import by_key
from fedpriv.auditing import auditor
from fedpriv.auditing.finding import Finding
from fedpriv.config import centralised
from fedpriv.config.plan import make_plan
from fedpriv.config.reading import require_run
from fedpriv.config.schema import Config, values_of_settings
from fedpriv.data import Source
from fedpriv.data.inputs import as_source
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.optimizers.base import PrivateOptimizer
from fedpriv.runs.callbacks import Callback
from fedpriv.runs.result import Result
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import Status, execute
from fedpriv.simulation import compare as comparisons
from fedpriv.simulation import compare_runs, run
from fedpriv.simulation.comparison import Comparison
from fedpriv.tasks.losses import Loss

Progress = bool | Callable[[Status], None] | None
Model = nn.Module | Callable[..., nn.Module] | str
Optimizer = PrivateOptimizer | type[PrivateOptimizer] | str
Settings = Config | Mapping[str, Any]


def simulate(
    settings: Settings | None = None,
    /,
    *,
    dataset: Source | Any = None,
    model: Model | None = None,
    loss: Loss | str | None = None,
    optimizer: Optimizer | None = None,
    folder: str | Path | None = None,
    progress: Progress = None,
    callbacks: Sequence[Callback] = (),
    **changes: Any,
) -> Result:
    """Run a simulated federation on this machine.

    Args:
        settings: a :class:`fedpriv.Config`, or settings by name; keyword arguments change them.
        dataset: the name of a data set; or an object: a :class:`fedpriv.data.Arrays` or another Source, a
            tuple (x, y, test_x, test_y) of arrays, tensors or lists, or a pair (train, test) of torch
            Datasets. With a finite object ``clients`` is by default the number of its training examples, or
            of their owners. The test part is public: it is scored on and the scores are shown.
        model: the name of a model; or an ``nn.Module``, which is copied and not changed, and whose values are
            where training starts; or a function that makes one (it is called with a
            :class:`fedpriv.models.Inputs`, or with nothing where it takes nothing).
        loss: a function of outputs (n, ...) and y (n, ...) that gives a finite loss for each example, (n,),
            whatever the others are; by default the loss of the data's target: cross-entropy for labels, half
            the squared error for values, binary cross-entropies for tags.
        optimizer: the name of an optimizer; or an object or class with the methods of
            :class:`fedpriv.optimizers.PrivateOptimizer`, such as a subclass of
            :class:`fedpriv.optimizers.BaseOptimizer`.
        folder: the output folder, as of ``fedpriv simulate --out``; None keeps everything in memory.
        progress: True shows a line that counts the rounds, False nothing, None shows it on a terminal and
            in a notebook; a function is called with a :class:`~fedpriv.runs.runner.Status` after each round.
        callbacks: :class:`fedpriv.Callback` objects that follow the run. They get public values only, and an
            error in one of them does not end the run.
        **changes: all other settings of ``fedpriv simulate --help``, such as ``clients=1000``,
            ``sampling_rate=0.1``, ``epsilon=3`` or ``seed=1``, which makes the run reproducible and not
            private.

    Returns:
        the result; a run that is interrupted (Ctrl-C) returns what it had.

    With an object among ``dataset``, ``model``, ``loss`` and ``optimizer`` the run computes in this process
    (``engine="in-process"``): Ray's actors are other processes, and objects would have to be pickled for
    them. To use Ray, write them into a module and give their names, as in ``model="mymodule:build"``.

    Raises ArgumentError or DataError before any work where the arguments do not fit; UserCodeError where the
    model's or data set's own code fails.

    >>> result = simulate(model="logistic", clients=2000, sampling_rate=0.05, rounds=3, engine="in-process")
    >>> result.stopped, result.epsilon <= 3
    ('rounds', True)
    """
    given = {"dataset": dataset, "model": model, "loss": loss, "optimizer": optimizer}
    with _prepared(settings, given, changes) as (values, objects):
        config = _configured(values, objects)
        return _run(config, folder, progress, callbacks)


def resume(
    folder: str | Path,
    /,
    *,
    dataset: Source | Any = None,
    model: Model | None = None,
    loss: Loss | str | None = None,
    optimizer: Optimizer | None = None,
    progress: Progress = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Continue a run that was interrupted, failed or was killed, from its output folder.

    It continues from its last evaluation under what is left of its budget: what was charged stays charged.

    Args:
        folder: the output folder of the run.
        dataset, model, loss, optimizer: the objects that the run was given, where it was given any.
        progress, callbacks: as of :func:`simulate`.

    Returns:
        the result of the whole run.

    Raises ArgumentError where the run cannot be resumed, or LedgerError where its ledger was changed.
    """
    path = Path(folder)
    given = {"dataset": dataset, "model": model, "loss": loss, "optimizer": optimizer}
    objects = {key: value for key, value in given.items() if value is not None}
    if "dataset" in objects:
        objects["dataset"] = as_source(objects["dataset"])
    with validation.python_names(Config.keys(), values_of_settings()), user_code.objects(objects):
        require_run("folder", path)
        plan, checkpoint, checked = run.resumed(path)
        with _showing(progress) as show:
            result = execute(plan, run.make_engine(plan.config), RunFolder(path), show, checkpoint, callbacks)
    return _with_notes(result, *checked.notes)


def train(
    model: Model | None = None,
    dataset: Source | Any = None,
    *,
    loss: Loss | str | None = None,
    optimizer: Optimizer | None = None,
    folder: str | Path | None = None,
    progress: Progress = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Result:
    """Train without a federation: one party holds all examples, and one example is the privacy unit.

    Args:
        model, dataset, loss, optimizer, folder, progress, callbacks: as of :func:`simulate`.
        **settings: all other settings of ``fedpriv train --help``, such as ``epsilon=3``, ``delta=1e-5``,
            ``sampling_rate=0.01`` and ``rounds=500``, which is the number of steps.

    Returns:
        the result. It computes in this process.

    Raises as :func:`simulate` does.

    >>> from fedpriv.optimizers import dp_adam
    >>> optimizer = dp_adam(0.005, clip_norm=1)
    >>> result = train("logistic", "digits", optimizer=optimizer, sampling_rate=0.1, rounds=3)
    >>> result.report["privacy"]["units"], result.report["optimizer"]
    (1437, 'dp-adam')
    """
    given = {"dataset": dataset, "model": model, "loss": loss, "optimizer": optimizer}
    with _prepared(None, given, settings) as (values, _):
        return _run(centralised.resolve(values), folder, progress, callbacks)


def compare(
    settings: Settings | None = None,
    /,
    *,
    placements: Sequence[str] = tuple(PLACEMENTS),
    dataset: Source | Any = None,
    model: Model | None = None,
    loss: Loss | str | None = None,
    optimizer: Optimizer | None = None,
    folder: str | Path | None = None,
    seeds: int = 0,
    progress: Progress = None,
    **changes: Any,
) -> Comparison:
    """Run the same federation under several placements of the noise, at the same budget.

    Args:
        settings, dataset, model, loss, optimizer, progress, **changes: as of :func:`simulate`.
        placements: of none, central, distributed and local; ``client`` is the level where silos train by
            themselves, and ``secure-aggregation`` is distributed noise with it.
        folder: the output folder; None keeps everything in memory. The same call continues a comparison that
            was interrupted or killed: runs that have ended are not run again.
        seeds: how many runs of each placement there are, with the seeds from ``seed`` on (1 where there is
            none), for means and their intervals; 0: one run each.

    Returns:
        the comparison, with a :class:`Result` for each placement: ``comparison["central"]``.

    Raises as :func:`simulate` does, and ArgumentError for a setting that no compared placement uses.

    >>> few = {"model": "logistic", "clients": 500, "sampling_rate": 0.1, "rounds": 2, "engine": "in-process"}
    >>> found = compare(few, placements=["none", "central"])
    >>> sorted(found.results), found["central"].epsilon <= 3
    (['central', 'none'], True)
    """
    given = {"dataset": dataset, "model": model, "loss": loss, "optimizer": optimizer}
    placements = [placements] if isinstance(placements, str) else placements
    if not placements:
        raise validation.fail("placements", placements, "name at least one placement")
    for placement in placements:  # here, since secure-aggregation is a value and no argument
        validation.choice("placements", placement, comparisons.COMPARED)
    with _prepared(settings, given, changes) as (values, objects):
        config = _configured(values, objects)
        run.check(config)
        plans = comparisons.plans(config, list(dict.fromkeys(placements)))
        named = {key for key in values if key not in objects}
        compare_runs.require_used({key: values[key] for key in named}, config, plans)
        found = compare_runs.as_sweep(config, plans, compare_runs.seeds_of(config, seeds))
        if folder is not None:
            compare_runs.begin(folder, found, config.overwrite)
        with _showing(progress) as show:
            path = None if folder is None else Path(folder)
            rows = compare_runs.run_here(found, path, lambda name, status: show(status))
        return Comparison(tuple(rows), comparisons.left_out(plans, rows))


def audit(
    settings: Config | Mapping[str, Any] | None = None,
    /,
    *,
    dataset: Source | Any = None,
    model: Model | None = None,
    loss: Loss | str | None = None,
    optimizer: Optimizer | None = None,
    own_data: bool = False,
    canaries: int = 0,
    confidence: float = 0.99,
    view: str = "auto",
    runs: int = 1,
    **changes: Any,
) -> Finding:
    """Attack a run with these settings, and see whether it leaks more than its ledger says.

    A canary stands in for each unit; the best adversary guesses which canaries were there. Data and model are
    not looked at, unless ``own_data``.

    Args:
        settings, dataset, model, loss, optimizer, **changes: as of :func:`fedpriv.simulate`, with noise.
        own_data: audit the run's own data, model and engine: a coin leaves out, or replaces, some units.
        canaries: how many there are; 0: one for each unit, up to 100,000 (5,000 with local steps, 2,000 where
            each client's message is seen); up to 200 units with ``own_data``.
        confidence: of the verdict and of each bound, in (0, 1).
        view: what the adversary sees: models (each released answer), last-model, server (each message) or
            parties (that collude); auto is server under local noise, else models.
        runs: how often a small run is repeated, with a guess about one unit each time; 1: one run, with
            guesses about all of its canaries.

    Returns:
        the finding: ``violated`` says whether the run leaks more than its ledger says. An audit that finds
        nothing is no proof of protection.

    Raises ArgumentError for a run that cannot be audited.

    >>> finding = audit(clients=500, sampler="everyone", sampling_rate=1, rounds=2, epsilon=8, seed=0)
    >>> finding.violated, finding.canaries
    (False, 500)
    """
    given = {"dataset": dataset, "model": model, "loss": loss, "optimizer": optimizer}
    with _prepared(settings, given, changes) as (values, objects):
        if own_data:
            config = _configured(values, objects)
            run.check(config, audited=True)
            return auditor.audit_own_data(config, run.make_engine, canaries, confidence, view=view, runs=runs)
        for name in ("dataset", "model", "loss"):
            if not isinstance(given[name], str | None):
                hint = "canaries stand in for data and model; own_data=True audits yours"
                raise validation.fail(name, "...", "be left out", hint)
        return auditor.audit(Config.parse(values), canaries, confidence, view=view, runs=runs)


@contextmanager
def _prepared(
    settings: Settings | None, given: Mapping[str, Any], changes: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The settings by key, and the objects among them, which are in place within this block; errors name the
    arguments as Python does."""
    keys = Config.keys()
    with validation.python_names(keys, values_of_settings()):
        _require_known(changes, keys)
        if not isinstance(settings, Config | Mapping | None):
            hint = "give settings by name, as in clients=1000, or a dict of them; dataset=... is for data"
            raise validation.fail("settings", settings, "be a fedpriv.Config or a mapping", hint)
        named = "engine" in changes or (isinstance(settings, Mapping) and "engine" in settings)
        base = settings.table() if isinstance(settings, Config) else by_key(settings or {})
        values = base | by_key({key: _plain(value) for key, value in changes.items()})
        values |= {key: value for key, value in given.items() if value is not None}
        objects = {
            key: values[key]
            for key in user_code.SETTINGS
            if key in values and not isinstance(values[key], str)
        }
        for key in ("model", "loss"):
            if key in objects and not callable(objects[key]):
                made = ", a torch module or a function that makes one" if key == "model" else " or a function"
                hint = _misplaced(objects[key]) if key == "model" else ""
                raise validation.fail(key, objects[key], f"be a name{made}", hint)
        if "dataset" in objects:
            objects["dataset"] = as_source(objects["dataset"])
        _require_private(objects.get("optimizer"))
        values |= {key: user_code.reference(found) for key, found in objects.items()}
        if objects:
            _require_here(values, objects, named)
            values["engine"] = "in-process"
        with user_code.objects(objects):
            yield values, objects


def _misplaced(given: object) -> str:
    """What to do with an argument that stands where a model is expected."""
    of_settings = isinstance(given, Mapping) and by_key(given).keys() <= set(Config.keys())
    if isinstance(given, Config) or of_settings:
        return "give settings by name, as in rounds=100"
    return "" if isinstance(given, int | float) else "the model comes first: train(model, dataset)"


def _require_known(changes: Mapping[str, Any], keys: list[str]) -> None:
    """Raises ArgumentError for a keyword argument that is no setting."""
    for key in changes:
        setting = key.replace("_", "-")
        if setting not in keys or setting == "out":  # a run in Python writes to the argument folder
            hint = validation.meant("folder") if setting == "out" else hints.of_key(setting, keys)
            hint = hint.replace(validation.meant("out"), validation.meant("folder"))
            raise validation.ArgumentError(f"there is no argument {key!r}; {hint}")


def _require_private(optimizer: Any) -> None:
    """Raises ArgumentError for an optimizer of torch, or its class: it adds no noise and knows no budget."""
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    if issubclass(kind, torch.optim.Optimizer):
        text = f"optimizer is torch's {kind.__name__}, which is not private; use one of fedpriv.optimizers"
        raise validation.ArgumentError(f"{text} or its name, as in optimizer='dp-sgd' or 'dp-adam'")


def _require_here(values: Mapping[str, Any], objects: Mapping[str, Any], engine_is_named: bool) -> None:
    """Raises ArgumentError where the caller asks for another process than this one."""
    if engine_is_named and values["engine"] != "in-process":
        hint = "to use Ray, write it into a module and name it, as in model='mymodule:build'"
        are = "is an object" if len(objects) == 1 else "are objects"
        text = f"be in-process where {' and '.join(objects)} {are} in memory"
        raise validation.fail("engine", values["engine"], text, hint)


def _plain(value: Any) -> Any:
    """A NumPy number as Python's; a path as its text."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value


def _configured(values: Mapping[str, Any], objects: Mapping[str, Any]) -> Config:
    """The configuration; by default a data set in memory has as many clients as examples, or as owners."""
    config, source = Config.parse(values), objects.get("dataset")
    silos = config.privacy_unit.in_silos and not config.partitioning.natural
    if "clients" in values or source is None:
        return config
    if silos:
        if source.size is not None and source.size < config.clients:
            text = f"clients is missing: it is the number of silos that hold the {source.size:,} examples"
            raise validation.ArgumentError(f"{text}, such as 10 (unit={config.unit}, level={config.level})")
        return config
    number = config.partitioning.clients_of(source)
    return config if number is None else config.changed(clients=number)


def _run(
    config: Config, folder: str | Path | None, progress: Progress, callbacks: Sequence[Callback]
) -> Result:
    checked = run.check(config)
    plan = make_plan(config)
    target = None if folder is None else RunFolder.create(folder, config.overwrite)
    with _showing(progress) as show:
        result = run.simulate(config, show, target, plan, callbacks)
    before = checked.warnings(plan) if plan.budget else ()
    earlier = [target.replaced] if target and target.replaced else []
    return _with_notes(result, *before, *checked.notes, *earlier)


def _with_notes(result: Result, *notes: str) -> Result:
    """The result with these notes before its own; all name settings as Python does."""
    named = (
        validation.in_python(text, Config.keys(), values_of_settings()) for text in (*notes, *result.notes)
    )
    return replace(result, notes=tuple(named))


@contextmanager
def _showing(progress: Progress) -> Iterator[Callable[[Status], None]]:
    """What to call after each round."""
    if callable(progress):
        yield progress
    elif progress or (progress is None and _somebody_looks_on()):
        yield _line
        sys.stderr.write("\n")
    else:
        yield lambda status: None


def _line(status: Status) -> None:
    """One line, written over the last one."""
    score = f"  test {status.measure.labelled(status.score)}" if status.evaluated else ""
    text = f"round {status.round}/{status.rounds}{score}  epsilon {status.epsilon_text(status.spent)}"
    sys.stderr.write(f"\r{text:<79}")
    sys.stderr.flush()


def _somebody_looks_on() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules
