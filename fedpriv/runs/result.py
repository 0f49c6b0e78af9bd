"""What a run returns, and what the folder of an earlier run holds: report, metrics and model.

>>> from fedpriv.simulation.api import simulate
>>> result = simulate(model="logistic", clients=2000, sampling_rate=0.05, rounds=3, engine="in-process")
>>> result.metrics[-1]["round"], result.epsilon <= 3, type(result.model()).__name__
(3, True, 'Sequential')
>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> load_result(result.save(folder)).epsilon == result.epsilon
True
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedpriv import models
from fedpriv._internal import run_files, tensor_io, user_code, validation
from fedpriv._internal.files import read_json
from fedpriv._internal.version import __version__
from fedpriv.accounting.head import Head, HeadFile, head_path, read_head
from fedpriv.accounting.record import parse, require_reaches
from fedpriv.config.builders import make_model, make_source
from fedpriv.config.reading import read_run, require_run
from fedpriv.config.schema import Config
from fedpriv.data import MissingDataError
from fedpriv.federated.stop_reason import StopReason
from fedpriv.models import weights
from fedpriv.report import markdown, overview, plots
from fedpriv.report.comparison import resume_hint
from fedpriv.report.notices import remark
from fedpriv.report.summary import LEDGER_HEAD
from fedpriv.runs.run_dir import RunFolder
from fedpriv.tasks import metrics as metrics_module

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


class MissingDependencyError(validation.FedprivError, ImportError):
    """Something needs a package that is optional and not installed; the message says how to install it."""


@dataclass(frozen=True)
class TrainedModel:
    """The tensors of a trained model, and how the module that they belong to is built.

    Attributes:
        tensors: everything that the module's ``state_dict()`` has, by name.
        trained: the names of the trained ones, in the order of the parameter vector.
        inputs: what the model was built for.
        build: makes the module, whatever its values; None where that takes an object of another process.
    """

    tensors: Mapping[str, Tensor]
    trained: tuple[str, ...]
    inputs: models.Inputs | None = None
    build: Callable[[], nn.Module] | None = None

    def module(self, given: nn.Module | None = None) -> nn.Module:
        """A new module, or the ``given`` one, with these tensors, in float32 and in evaluation mode."""
        if given is None:
            if self.build is None:
                hint = "the run was given its model as an object: give it here again, model(my_module)"
                raise validation.fail("module", None, "be the module that the run trained", hint)
            given = self.build()
        return weights.fill(given, self.tensors).eval()

    def packed(self, about: Mapping[str, str]) -> bytes:
        """The content of model.safetensors, with ``about`` in its metadata."""
        own = {"trained": json.dumps(list(self.trained))}
        if self.inputs is not None:
            own["inputs"] = json.dumps(
                {"shape": self.inputs.shape, "classes": self.inputs.classes, "tokens": self.inputs.tokens}
            )
        return tensor_io.packed(self.tensors, {**about, **own})


@dataclass(frozen=True, repr=False, eq=False)
class Result:
    """A finished run.

    Attributes:
        report: what report.json holds.
        metrics: one record for each evaluation on the public test set, in order.
        stopped: how the run ended.
        config: all settings, with what 0 stands for filled in.
        trained: the model.
        folder: the output folder; None where the outputs were kept in memory.
        ledger: the content of the ledger's file.
        spending: (round, epsilon) with no less than what was spent by that round, in order.
        notes: what is unusual about the run, in sentences.
    """

    report: dict[str, Any]
    metrics: list[dict[str, Any]]
    stopped: StopReason
    config: Config
    trained: TrainedModel
    folder: Path | None = None
    ledger: bytes = b""
    spending: Sequence[tuple[int, float]] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def params(self) -> Tensor:
        """The trained parameters as one vector (d,), in the order of ``named_parameters()``.

        Raises ArgumentError for a folder of version 0.1.0 whose data set is not on this machine.
        """
        if not self.trained.trained:
            allowed = "be on this machine, as the order of the parameters follows from it"
            raise validation.fail("dataset", self.config.dataset, allowed)
        return torch.cat([self.trained.tensors[name].reshape(-1) for name in self.trained.trained])

    @property
    def score(self) -> float:
        """The last score on the public test set: accuracy, or what the report calls it; NaN without one."""
        last = self.metrics[-1] if self.metrics else {}
        value = last.get(metrics_module.shown(last).key)
        return math.nan if value is None else float(value)

    @property
    def epsilon(self) -> float:
        """Epsilon of the run against the adversary that the report names first; infinite without noise.

        Where the run was interrupted or resumed, it is the budget's: whoever ends a run for what it has
        released may claim no less.
        """
        return overview.epsilon(self.report)

    @property
    def delta(self) -> float | None:
        """The delta of the budget; None without noise."""
        budget = self.report["privacy"]["budget"]
        return None if budget is None else float(budget["delta"])

    def model(self, module: nn.Module | None = None) -> nn.Module:
        """The trained model as an ordinary ``nn.Module``, in float32 and in evaluation mode.

        It takes raw inputs: where ``input_mean`` and ``input_std`` were set, the module applies them. Frozen
        parameters and buffers are those of the run.

        Args:
            module: filled with the trained tensors and returned, instead of a new one. A result that was
                loaded from a folder needs it where the run was given its model as an object.

        Raises ArgumentError where the module is not the one that was trained, or is missing.
        """
        return self.trained.module(module)

    def plot(self) -> Figure:
        """A matplotlib figure of the test score and the spent epsilon against rounds; a notebook shows it."""
        return plots.draw(self.report, self.metrics, self.spending)

    def to_pandas(self) -> pandas.DataFrame:
        """The metrics as a table, one row for each evaluation, indexed by round.

        Raises MissingDependencyError where pandas is not installed.
        """
        return as_frame(self.metrics, "round")

    def save(self, folder: str | Path, overwrite: bool = False) -> Path:
        """Write the run's files to a folder and return its path; :func:`load_result` opens it.

        The folder has everything that a run leaves but state.safetensors, from which a run is resumed.

        Raises ArgumentError where the folder holds anything, unless ``overwrite``.
        """
        with validation.python_names([], []):
            target = RunFolder.create(folder, overwrite)
        note = remark(self.config)
        target.begin(self.config, note, self.metrics)
        target.write(run_files.LEDGER, self.ledger)
        if self.ledger:
            path = target.path / run_files.LEDGER
            HeadFile.create(head_path(path), parse(self.ledger, str(path)).head).close()
        last = str(self.metrics[-1]["round"]) if self.metrics else "0"
        about = {"fedpriv": __version__, "round": last} | ({"remark": note} if note else {})
        target.write(run_files.MODEL, self.trained.packed(about))
        for name, content in report_files(self.report, self.metrics, self.spending).items():
            target.write(name, content)
        return target.path

    def __repr__(self) -> str:
        return f"Result({overview.sentence(self.report)})"

    def _repr_html_(self) -> str:
        return overview.html(self.report, self.notes)


def report_files(
    report: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], spending: Sequence[tuple[int, float]]
) -> dict[str, str | bytes]:
    """The files that a run's end writes, in that order."""
    return {
        run_files.REPORT: json.dumps(report, indent=2) + "\n",
        run_files.REPORT_TEXT: markdown.markdown(report),
        run_files.CURVES: plots.curves(report, metrics, spending),
    }


def as_frame(records: Sequence[Mapping[str, Any]], index: str) -> pandas.DataFrame:
    """The records as a pandas table. Raises MissingDependencyError where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        text = (
            "to_pandas needs pandas, which is not installed; install it with: pip install 'fedpriv[pandas]'"
        )
        raise MissingDependencyError(text) from None
    frame = pandas.DataFrame.from_records(list(records))
    return frame.set_index(index) if index in frame else frame


def load_result(folder: str | Path) -> Result:
    """The result of an earlier run, from its output folder, of this version of fedpriv or of 0.1.0.

    Nothing is unpickled: the folder holds TOML, JSON and safetensors files. The ledger must be the one that
    the report was written for, to its last line. Its anchor is not asked, since that may start a command that
    the folder names: `fedpriv account --ledger` does.

    Raises LedgerError where the ledger was edited, cut or replaced; ArgumentError where the folder holds no
    run, or one that has not ended or whose files are damaged.
    """
    path = Path(folder)
    require_run("folder", path)
    config = Config.parse(read_run(path))
    if not (path / run_files.REPORT).is_file():
        hint = f"it has no report.json; {resume_hint(path, config)}"
        raise validation.fail("folder", str(folder), "hold a run that has ended", hint)
    try:
        report = read_json((path / run_files.REPORT).read_bytes())
        lines = (path / run_files.METRICS).read_text().splitlines()
        metrics = [read_json(line) for line in lines]
        spending = [(record["round"], record["epsilon"]) for record in metrics]
        stopped = StopReason(report["result"]["stopped"])
        trained = _trained(path, config)
        ledger = _ledger(path / run_files.LEDGER, report)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, validation.FedprivError):
            raise
        hint = f"{type(error).__name__}: {error}"
        raise validation.fail("folder", str(folder), "hold the intact files of a run", hint) from None
    return Result(report, metrics, stopped, config, trained, path, ledger, spending)


def _ledger(path: Path, report: Mapping[str, Any]) -> bytes:
    """The ledger's content. Raises LedgerError unless it ends where its head and the report say."""
    content = path.read_bytes()
    if not content:
        return content
    record = parse(content, str(path))
    if (sealed := read_head(head_path(path))) is not None:
        require_reaches(record, sealed, path, f"its head, {head_path(path)},")
    if stated := report["privacy"].get(LEDGER_HEAD):  # a report of version 0.1.0 has none
        require_reaches(record, Head.from_json(stated), path, "report.json beside it")
    return content


def _trained(folder: Path, config: Config) -> TrainedModel:
    with safe_open(folder / run_files.MODEL, "pt") as file:
        about = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if "trained" not in about:
        return _of_0_1_0(config, tensors)
    order = tuple(read_json(about["trained"]))
    if "inputs" not in about:  # the arrays of a Flower app, whose model only the app can build
        return TrainedModel(tensors, order)
    known = read_json(about["inputs"])
    inputs = models.Inputs(tuple(known["shape"]), known["classes"], tuple(known["tokens"]))
    build = None if user_code.in_memory(config.model) else lambda: make_model(config, inputs, started=False)
    return TrainedModel(tensors, order, inputs, build)


def _of_0_1_0(config: Config, tensors: Mapping[str, Tensor]) -> TrainedModel:
    """A model that version 0.1.0 wrote: its file has the trained parameters alone, and not their order."""

    def build() -> nn.Module:
        source = make_source(config)
        return make_model(config, models.Inputs(source.shape, source.classes, source.tokens), started=False)

    try:
        order = tuple(name for name, _ in build().named_parameters() if name in tensors)
    except MissingDataError:  # the order is not known without the data set, the model is
        order = ()
    return TrainedModel(tensors, order, build=build)
