"""Models and data of a user's own, named in settings as module:name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from fedpriv._internal import user_code
from fedpriv._internal.validation import ArgumentError
from fedpriv.cli import app
from fedpriv.clipping.invariance import ALONE, Batches
from fedpriv.config.builders import initial_params, make_source, make_task
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.data import load
from fedpriv.node.policy import RefusedError, as_taken
from fedpriv.optimizers import dp_sgd
from fedpriv.rng import Key
from fedpriv.runs.run_dir import RunFolder
from fedpriv.simulation.run import check, simulate

MINE = '''
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedpriv import models
from fedpriv.data import Arrays
from fedpriv.optimizers import BaseOptimizer

CONSTANT = 3


class Net(nn.Module):
    """Takes nothing; a layer that no kind knows, a frozen one, and one that starts where its author says."""

    def __init__(self, hidden=8):
        super().__init__()
        self.first = nn.Linear(5, hidden)
        self.scale = nn.Parameter(torch.rand(hidden))
        self.fixed = nn.Linear(hidden, hidden).requires_grad_(False)
        self.last = nn.Linear(hidden, 2)
        nn.init.constant_(self.last.weight, 0.25)

    def forward(self, x):
        return self.last(self.fixed(torch.tanh(self.first(x)) * self.scale))


def fitted(inputs):
    return nn.Sequential(nn.Linear(inputs.shape[0], 16), nn.ReLU(), nn.Linear(16, inputs.classes))


def wide(inputs):
    return nn.Linear(inputs.shape[0] + 1, inputs.classes)


def filled(inputs):
    model = models.build("logistic-binary", inputs.shape, inputs.classes)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    return model


def broken():
    raise OSError("no such\\nfile")


def ends():
    raise SystemExit(3)


class Keyed(nn.Linear):
    def __init__(self):
        super().__init__(5, 2)

    def forward(self, x):
        return {}["no"]


class Paired(Keyed):
    def forward(self, x):
        return (nn.functional.linear(x, self.weight, self.bias),)


class Looking(Keyed):
    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias) * float(x.sum() > 0)


class Drawing(Keyed):
    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias) + torch.rand(2)


class Centred(Keyed):
    """Mixes examples, which shows only once its last layer has left zero."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x):
        return nn.functional.linear(x - x.mean(0), self.weight, self.bias)


class Shared(Keyed):
    """Mixes examples by their number alone."""

    def forward(self, x):
        return nn.functional.linear(x / len(x), self.weight, self.bias)


def deep():
    """Does not mix examples, but amplifies rounding where its parameters are shifted."""
    layers = [layer for _ in range(30) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(nn.Linear(5, 64), nn.Tanh(), *layers, nn.Linear(64, 2))


class Resting(Keyed):
    def forward(self, x):
        if self.training:
            raise RuntimeError("for use alone")
        return nn.functional.linear(x, self.weight, self.bias)


def double():
    return nn.Sequential(nn.Linear(5, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 2)).double()


class Unsteady(nn.Linear):
    def __init__(self):
        super().__init__(5, 2)
        self.register_buffer("features", torch.as_tensor(np.random.rand(2)))


class Gain(Keyed):
    """With a parameter that is a single number."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.gain * nn.functional.linear(x, self.weight, self.bias)


def lazy():
    return nn.LazyLinear(2)


def undefined():
    model = nn.Linear(5, 2)
    nn.init.constant_(model.weight, float("nan"))
    return model


def frozen():
    return nn.Linear(5, 2).requires_grad_(False)


def unsteady():
    return data(np.random.default_rng())


def number():
    return 7


class Late(nn.Module):
    """Fails once a run has a ledger, which is after all checks."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(5, 2)

    def forward(self, x):
        if torch.is_grad_enabled() and any(Path(__file__).parent.glob("runs/*/ledger.jsonl")):
            fail_late()
        return self.layers(x)


def fail_late():
    raise RuntimeError("it is late")


class Falling(BaseOptimizer):
    def update(self, state, answer):
        return state.slots["velocity"]


class NoState(BaseOptimizer):
    def update(self, state, answer):
        return state.params


class NoUpdate(BaseOptimizer):
    pass


class NoReleases(NoState):
    def planned(self, rounds):
        return [1.0] * rounds


def data(generator=None):
    generator = generator or np.random.default_rng(3)
    x = generator.standard_normal((2200, 5)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    return Arrays("mine", x[:2000], y[:2000], x[2000:], y[2000:], classes=2)
'''
SETTINGS = {
    "dataset": "users_mine:data",
    "clients": 2000,
    "sampling-rate": 0.1,
    "rounds": 30,
    "epsilon": 8.0,
    "delta": 1e-5,
    "learning-rate": 1.0,
    "optimizer": "dp-sgd",
    "engine": "in-process",
    "seed": 5,
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the user's module, which is the current one."""
    (tmp_path / "users_mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("users_mine", None)


def require_refused(key: str, reference: str, message: str, **others: str) -> None:
    """The check refuses the user's code that ``key`` names, in one line."""
    with pytest.raises(ArgumentError) as caught:
        check(Config.parse({**SETTINGS, **others, key: reference}))
    assert str(caught.value).startswith(f"{key} is {reference!r}; it must ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["Net", "fitted", "Gain", "double"])
@pytest.mark.slow
def test_a_run_learns_with_a_users_model_and_data(mine: Path, name: str) -> None:
    model = f"users_mine:{name}"
    config = Config.parse({**SETTINGS, "model": model})
    check(config)
    result = simulate(config)
    assert result.metrics[-1]["accuracy"] > 0.85
    assert result.report["model"] == model
    assert torch.equal(result.params, simulate(config).params)


def test_a_users_model_starts_as_it_is_built(mine: Path) -> None:
    config = Config.parse({**SETTINGS, "model": "users_mine:Net"})
    task = make_task(config, make_source(config))
    start = task.layout.split(initial_params(task, Key.fresh()))
    assert (start["last.weight"] == 0.25).all()
    torch.manual_seed(5)
    net = user_code.called("model", "users_mine:Net")
    assert all(torch.equal(start[name], p.detach()) for name, p in net.named_parameters() if name in start)


def test_a_model_is_the_same_on_every_node_and_draws_nothing_from_the_global_generator(mine: Path) -> None:
    config = Config.parse({**SETTINGS, "model": "users_mine:Net", "seed": -1})
    source, before = make_source(config), torch.get_rng_state()
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    outputs = []
    for _ in range(2):
        task = make_task(config, source)
        assert torch.equal(torch.get_rng_state(), before)
        outputs.append(task.outputs(torch.ones(task.dimension), x))  # through its frozen layer
    assert torch.equal(*outputs)
    other = make_task(config.changed(seed=1), source)
    assert not torch.equal(other.outputs(torch.ones(task.dimension), x), outputs[0])


def test_a_built_in_model_with_given_values_keeps_them(mine: Path) -> None:
    """Whatever laws its layers have: pretrained, say."""
    config = Config.parse({**SETTINGS, "model": "users_mine:filled"})
    task = make_task(config, make_source(config))
    assert (initial_params(task, Key.fresh()) == 0.5).all()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("users_mine:", "module:name"),
        ("users mine:net", "module:name"),
        ("users_mine:fited", "did you mean 'fitted'"),
        ("users_mine:nothing_like_it", "users_mine.py"),
        ("users_myne:Net", "No module named 'users_myne'; modules are looked for"),
        ("users_mine:CONSTANT", "a function or a class"),
        ("users_mine:broken", "OSError: no such file"),
        ("users_mine:ends", "SystemExit: 3"),
        ("users_mine:number", "it returns int"),
        ("users_mine:Keyed", "KeyError: 'no'"),
        ("users_mine:Paired", "give one tensor (n, ...)"),
        ("users_mine:Looking", "have gradients for each example alone"),
        ("users_mine:Resting", "work in training mode too (RuntimeError: for use alone, at "),
        ("users_mine:Unsteady", "be the same whenever it is built"),
        ("users_mine:lazy", "know the sizes of its layers (weight is lazy)"),
        ("users_mine:undefined", "start from finite values (weight has NaN or infinity)"),
        ("users_mine:frozen", "have trainable parameters"),
        ("users_mine:wide", "take inputs (n, 5), as mine has them"),
        ("no-such", "module:name"),
    ],
)
def test_errors_name_the_fault_of_a_model(mine: Path, reference: str, message: str) -> None:
    require_refused("model", reference, message)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("users_mine:ends", "SystemExit: 3"),
        ("users_mine:unsteady", "give the same examples whenever it is called"),
        ("users_mine:number", "it returns int, which has no attribute"),
        ("users_mine:data_", "'data'"),
        ("no-such", "module:name"),
    ],
)
def test_errors_name_the_fault_of_data(mine: Path, reference: str, message: str) -> None:
    require_refused("dataset", reference, message, model="logistic")


def test_python_refuses_a_model_as_the_command_does(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is charged; objects that were checked with the plan are not checked again."""
    config = Config.parse({**SETTINGS, "model": "users_mine:Drawing"})
    with pytest.raises(ArgumentError) as caught:
        check(config)
    assert "draw by nn.Dropout layers alone" in str(caught.value)
    folder = RunFolder.create(mine / "run")
    with pytest.raises(ArgumentError) as again:
        simulate(config, folder=folder)
    assert str(again.value) == str(caught.value)
    assert list(folder.path.iterdir()) == []
    monkeypatch.setattr("fedpriv.simulation.run.check", lambda config: pytest.fail("checked again"))
    plain = config.changed(model="logistic", rounds=1)
    assert simulate(plain, plan=make_plan(plain)).stopped == "rounds"


def test_a_users_data_has_no_options(mine: Path) -> None:
    with pytest.raises(ArgumentError, match="vocabulary=5 has no effect: the data set users_mine:data"):
        load("users_mine:data", vocabulary=5)


@pytest.mark.parametrize("key", ["model", "dataset", "loss", "optimizer"])
def test_a_node_with_data_runs_only_accepted_code(key: str) -> None:
    run = {"nodes-own-data": True, key: "os:abort"}
    node: dict[str, object] = {"data-file": "mine.npz"}
    with pytest.raises(RefusedError, match=f"the run's {key} is code, os:abort"):
        as_taken(run, node)
    with pytest.raises(RefusedError):
        as_taken(run, {**node, "accept-code": "os:aborted users_mine:Net"})
    assert as_taken(run, {**node, "accept-code": "users_mine:Net os:abort"})[key] == "os:abort"


@pytest.mark.slow
def test_actors_find_the_users_module_in_the_current_folder(mine: Path) -> None:
    """Through the installed command, whose own folder is not the current one."""
    settings = {**SETTINGS, "model": "users_mine:Net", "engine": "ray", "actors": 2, "rounds": 4}
    flags = [f"--set={key}={value}" for key, value in settings.items()]
    command = [Path(sys.executable).with_name("fedpriv"), "simulate", *flags, "--json"]
    env = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["model"] == "users_mine:Net"


def test_a_large_seed_builds_a_users_model(mine: Path) -> None:
    check(Config.parse({**SETTINGS, "model": "users_mine:Net", "seed": 2**70}))


APART = ("Net", "fitted", "Gain", "double", "deep")


def test_a_model_that_mixes_examples_is_reported_before_the_run(mine: Path) -> None:
    """Alone, x - x.mean(0) is 0."""
    notes = {name: check(Config.parse({**SETTINGS, "model": f"users_mine:{name}"})).notes for name in APART}
    assert not any(notes.values()), notes
    assert len(check(Config.parse({**SETTINGS, "model": "users_mine:Shared"})).notes) == 1
    settings = {**SETTINGS, "model": "users_mine:Centred", "rounds": 2, "clients": 200}
    flags = [f"--set={key}={value}" for key, value in settings.items()]
    note = "NOTE: model users_mine:Centred mixes examples: what it gives for one depends on those beside it"
    for command in (["simulate"], ["compare", "--placements", "none,central"]):
        result = CliRunner().invoke(app, [*command, *flags, "--out", command[0]])
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        [at] = [number for number, line in enumerate(lines) if line.startswith(note)]
        assert not any("round 2/2" in line for line in lines[:at])
    quiet = CliRunner().invoke(app, ["simulate", *flags, "--json", "--out", "quiet"])
    assert note in quiet.stderr
    assert json.loads(quiet.stdout)["out"] == "quiet"


def test_a_model_whose_units_are_summed_one_by_one_is_reported_before_the_run(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.parse({**SETTINGS, "model": "users_mine:Net"})
    monkeypatch.setattr(Batches, "begin", lambda *given: False)  # no batch passes its trial
    assert check(config).notes == (f"model users_mine:Net: {ALONE}",)
    assert not check(config.changed(model="logistic")).notes  # that of the package is tested


def run_by_command(*settings: str) -> Result:
    """What `fedpriv simulate` does with these settings, on the user's own data."""
    few = ("clients=600", "sampling-rate=0.3", "rounds=2", *settings)
    given = ("dataset=users_mine:data", "model=users_mine:Net", *few)
    return CliRunner().invoke(app, ["simulate", *(f"--set={text}" for text in given)])


@pytest.mark.parametrize("engine", [["in-process"], ["ray", "actors=2"]])
@pytest.mark.slow
def test_an_error_in_a_users_model_is_shown_with_its_traceback(
    mine: Path, engine: list[str], ray_instance: None
) -> None:
    answer = run_by_command("model=users_mine:Late", f"engine={engine[0]}", *engine[1:])
    assert answer.exit_code == 1, answer.output
    shown = answer.stderr[answer.stderr.index("Traceback") :]
    assert f'File "{mine / "users_mine.py"}", line' in shown
    assert "in forward\n    fail_late()" in shown
    assert "in fail_late\n    raise RuntimeError(" in shown
    assert shown.rstrip().endswith("RuntimeError: it is late")
    assert shown.count("File ") == 2  # nothing of fedpriv, torch and Ray
    assert shown.count("Traceback") == 1  # however many actors failed


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Falling", "in update\n    return state.slots["),
        ("NoState", "NoState.update returned a Tensor; it must return a State"),
        ("NoUpdate", "it must have a method update of its own"),
        ("NoReleases", "NoReleases.planned returned a float; it must return a PlannedRelease"),
    ],
)
def test_errors_name_the_fault_of_an_optimizer(mine: Path, name: str, message: str) -> None:
    answer = run_by_command(f"optimizer=users_mine:{name}", "engine=in-process")
    assert answer.exit_code in (1, 2)
    assert message in answer.stderr
    assert "fedpriv/" not in answer.stderr


def test_an_error_of_ours_has_no_trace_in_users_code() -> None:
    with pytest.raises(ArgumentError) as caught:
        dp_sgd(-1.0, 1.0)
    ours = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert user_code.trace(ours) == ""
