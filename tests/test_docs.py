"""The code in the documents runs and says what they say, and their links, settings and names are real."""

from __future__ import annotations

import doctest
import functools
import importlib
import importlib.util
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import typer
from safetensors.torch import load_file
from typer.testing import CliRunner

import fedpriv
from fedpriv._internal.validation import FedprivError
from fedpriv.cli import app
from fedpriv.cli.simulate import given
from fedpriv.config import plan as plans
from fedpriv.config.schema import Config
from fedpriv.models import MODELS
from fedpriv.simulation.run import simulate

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ELSEWHERE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy/README.md"]
NAMES = [str(path.relative_to(ROOT)) for path in (*PAGES, *ELSEWHERE)]
SETTINGS_COMMANDS = ("simulate", "train", "compare", "audit", "bench")


def code_of(name: str, language: str) -> list[str]:
    """The fenced code of a page in one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)


def prose_of(name: str) -> str:
    """A page without its Python files, whose docstrings may hold examples of their own."""
    return re.sub(r"^```python\n.*?^```", "", (ROOT / name).read_text(), flags=re.DOTALL | re.MULTILINE)


def commands_of(name: str) -> list[str]:
    """The commands of a page's shell code, with continued lines joined."""
    text = "".join(code_of(name, "sh")).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def write_files(name: str, folder: Path) -> list[str]:
    """Write a page's Python files, those whose first line is a comment with their name; gives the modules."""
    files = dict(
        re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)
    )
    for module, text in files.items():
        (folder / f"{module}.py").write_text(text)
    return list(files)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder as the current one; modules in it can be imported, and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == tmp_path:
            del sys.modules[name]


SWEEPS = ("docs/guides/sweep.md", "docs/guides/python.md")  # their examples start processes
EXAMPLES = [name for name in NAMES if ">>> " in prose_of(name)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SWEEPS else ()) for name in EXAMPLES]
)
def test_a_documents_examples_run(name: str, empty: Path) -> None:
    write_files(name, empty)
    text = re.sub(r"^```.*$", "", prose_of(name), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    found = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_and_options_of_a_documents_commands_exist(name: str) -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    for line in commands_of(name):
        words = shlex.split(line, comments=True)
        if not words or words[0] != "fedpriv":
            continue
        command: click.Command = root
        arguments = words[1:]
        while isinstance(command, click.Group):
            command, arguments = command.commands[arguments[0]], arguments[1:]
        context = command.make_context(line, arguments, resilient_parsing=True)
        if command.name in SETTINGS_COMMANDS:
            settings: dict[str, Any] = given(None, list(context.params["settings"] or []), None, None, False)
            Config.parse(settings)


@pytest.mark.parametrize("name", NAMES)
def test_a_documents_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)#:\s]+)[^):]*\)", (ROOT / name).read_text()):
        target = (ROOT / name).parent / link
        assert target.exists() or link in generated_links(name), f"{name} links to {link}"


REFUSED = re.findall(
    r"^Refused: `fedpriv simulate (.*)`", (DOCS / "sharp-edges.md").read_text(), re.MULTILINE
)


@pytest.mark.parametrize("settings", REFUSED)
def test_the_refusals_of_the_sharp_edges_page_happen(settings: str) -> None:
    values = given(None, re.findall(r"--set (\S+)", settings), None, None, False)
    with pytest.raises(FedprivError):
        plans.make_plan(Config.parse(values))


def test_there_are_refusals() -> None:
    assert len(REFUSED) > 10


def generated_links(name: str) -> set[str]:
    """Links of a page in docs/ to the pages that are generated for the site."""
    generate = site_generator()
    depth = name.count("/") - 1
    notebooks = {f"notebooks/{path.stem}.md" for path in (DOCS / "notebooks").glob("*.ipynb")}
    found = {*generate.pages(), *notebooks}
    folder = "/".join(name.split("/")[1:-1])
    near = {path.removeprefix(folder + "/") for path in found if folder and path.startswith(folder + "/")}
    return near | {"../" * depth + path for path in found}


def site_generator() -> Any:
    """docs/_site/generate.py, which makes the reference."""
    return docs_module("generate")


def docs_module(name: str) -> Any:
    """A module of docs/_site, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"_site/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_is_in_the_reference() -> None:
    pages = dict(site_generator().api())
    packages = [info.name for info in pkgutil.iter_modules(fedpriv.__path__, "fedpriv.") if info.ispkg]
    assert "fedpriv.accounting" in packages
    for name in ("fedpriv", *packages):
        if name in ("fedpriv._internal", "fedpriv.cli"):  # no library: helpers, and commands
            continue
        module = importlib.import_module(name)
        page = pages[name.removeprefix("fedpriv.")]
        for public in getattr(module, "__all__", []):
            found = getattr(module, public)
            home = f"{found.__module__}.{found.__qualname__}" if hasattr(found, "__qualname__") else ""
            assert f"{name}.{public}" in page or f"::: {home}\n" in page, f"{name}.{public}"


def test_every_setting_command_and_model_is_in_the_reference() -> None:
    pages = site_generator().pages()
    for model in MODELS:
        assert f"| `{model}` |" in pages["reference/models.md"], model
    for key in Config.all_fields():
        assert f"| `{key}` |" in pages["reference/settings.md"], key
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    for command in root.commands:
        assert f"## fedpriv {command}" in pages["reference/command-line.md"], command


def run_commands(commands: list[str], settings: list[str], only: tuple[str, ...] = ()) -> None:
    """Run a page's commands in the current folder, with further settings for those that take some."""
    for line in commands:
        words = shlex.split(line, comments=True)
        if only and words[1] not in only:
            continue
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True)
            continue
        assert words[0] == "fedpriv", line
        extra = [word for setting in settings for word in ("--set", setting)]
        result = CliRunner().invoke(app, words[1:] + (extra if words[1] in SETTINGS_COMMANDS else []))
        assert result.exit_code == 0, f"{line}\n{result.output}"


@pytest.mark.slow
def test_the_first_guides_commands_run_in_an_empty_folder(empty: Path) -> None:
    name = "docs/start.md"
    assert write_files(name, empty) == ["make_people", "mine", "run"]
    commands = commands_of(name)
    assert len(commands) == 7
    run_commands(commands[:1], ["rounds=2", "engine=in-process"])
    run_commands(commands[1:], ["engine=in-process"])
    scores = {
        run: json.loads((empty / "runs" / run / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"]
        for run in ("mine", "limit", "strong")
    }
    assert scores["mine"] > 0.85
    assert scores["limit"] > 0.9
    assert (empty / "report.html").exists()


@pytest.mark.slow
def test_an_own_optimizers_commands_run(empty: Path) -> None:
    name = "docs/guides/own-optimizer.md"
    assert write_files(name, empty) == ["halving", "heavy_ball", "falling"]
    run_commands(commands_of(name), ["engine=in-process"], only=("simulate",))
    run_commands(commands_of(name), ["seed=0"], only=("audit",))
    assert "halving:Halving" in (empty / "runs/halving/report.json").read_text()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_sweep_of_its_guide_runs(empty: Path) -> None:
    name = "docs/guides/sweep.md"
    text, _ = code_of(name, "toml")
    (empty / "sweep.toml").write_text(text)
    run_commands(commands_of(name), [])
    with (empty / "runs/sweep/results.csv").open() as file:
        assert sum(1 for _ in file) == 1 + 24 * 4
    assert (empty / "runs/sweep/sweep.png").exists()
    assert (empty / "runs/sweep/optimizer=dp-adam,placement=central,epsilon=1,seed=2").is_dir()


@pytest.mark.slow
def test_the_tutorial_runs_in_a_short_form(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data, its commands, and its sweep with fewer rounds, budgets and seeds."""
    name = "docs/guides/central-or-local.md"
    (empty / "mine.py").write_text(code_of(name, "python")[0])
    [text] = code_of(name, "toml")
    short = text.replace("rounds = 20", "rounds = 4").replace("epsilon = [1, 4, 8]", "epsilon = [8]")
    (empty / "decide.toml").write_text(short.replace("seed = [1, 2, 3]", "seed = [1, 2]"))
    monkeypatch.setattr(sys, "path", [str(empty), *sys.path])
    commands = [shlex.split(line) for line in commands_of(name)]
    assert [words[1] for words in commands] == ["compare", "sweep", "sweep", "simulate"]
    for words in commands:
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, result.output
    sys.modules.pop("mine", None)
    with (empty / "runs/decide/results.csv").open() as file:
        assert sum(1 for _ in file) == 1 + 4 * 2
    assert "central" in (empty / "runs/decide/tuning.json").read_text()
    assert (empty / "runs/chosen/report.md").exists()


@pytest.mark.parametrize("optimizer", ["halving:Halving", "heavy_ball:HeavyBall", "falling:Falling"])
def test_own_optimizers_learn(empty: Path, optimizer: str) -> None:
    write_files("docs/guides/own-optimizer.md", empty)
    settings = {"model": "logistic", "clients": 2000, "sampling-rate": 0.1, "rounds": 20, "seed": 1}
    result = simulate(Config.parse({**settings, "optimizer": optimizer, "engine": "in-process"}))
    assert result.stopped == "rounds"
    assert result.metrics[-1]["accuracy"] > 0.5


@pytest.fixture
def own_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The guide to own data, in a folder that holds its mine.py: all of its code, in one file."""
    name = "docs/guides/own-data-and-model.md"
    (tmp_path / "mine.py").write_text("\n\n".join(code_of(name, "python")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("data", "settings", "score", "least", "most"),
    [
        ("data", {"model": "mine:net"}, "accuracy", 0.9, 1.0),
        ("words", {"model": "mlp-text", "optimizer": "dp-adam", "learning-rate": 0.05}, "accuracy", 0.7, 1.0),
        ("heights", {"model": "linear", "optimizer": "dp-sgd", "learning-rate": 1.0}, "mse", 0.0, 0.1),
        ("genres", {"model": "logistic"}, "accuracy", 0.7, 1.0),  # a half would be chance
    ],
)
@pytest.mark.slow
def test_every_kind_of_data_on_the_page_can_be_learnt_from(
    own_page: str, data: str, settings: dict[str, object], score: str, least: float, most: float
) -> None:
    common = {"clients": 5000, "sampling-rate": 0.1, "rounds": 20, "engine": "in-process", "seed": 1}
    result = simulate(Config.parse({**common, **settings, "dataset": f"mine:{data}"}))
    assert least <= result.metrics[-1][score] <= most


@pytest.mark.slow
def test_the_commands_on_own_code_do_what_the_page_says(own_page: str) -> None:
    commands = [shlex.split(line) for line in commands_of(own_page)]
    assert [words[1] for words in commands] == ["simulate", "bench", "compare"]
    for words in commands:
        result = CliRunner().invoke(app, [*words[1:], "--set", "engine=in-process"])
        assert result.exit_code == 0, result.output
    report = max(Path("runs").glob("*/report.json")).read_text()
    assert "mine:net" in report


@pytest.mark.slow
def test_the_guide_to_hugging_face_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On made-up reviews, with few rounds; and with the adapters of its second part."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("peft")
    kinds = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
    rows = {"text": ["a dull book", "a fine book"] * 30, "label": [0, 1] * 30}
    both = {part: datasets.Dataset.from_dict(rows, features=kinds) for part in ("train", "test")}
    monkeypatch.chdir(tmp_path)
    datasets.DatasetDict(both).save_to_disk("reviews")
    first, second = code_of("docs/guides/hugging-face.md", "python")
    names: dict[str, Any] = {}
    exec(first.replace("rounds=20", "rounds=2"), names)
    assert names["result"].metrics[-1]["round"] == 2
    exec(second, names)
    few = {"clients": 60, "sampling_rate": 0.1, "rounds": 2, "epsilon": 8}
    names["simulate"](model=names["network"], dataset=names["reviews"], folder="run", **few)
    network, before = names["network"], {k: v.clone() for k, v in names["network"].state_dict().items()}
    assert not network.load_state_dict(load_file("run/model.safetensors"), strict=False).unexpected_keys
    moved = {name for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved
    assert all("lora" in name for name in moved)
    network.save_pretrained("adapter")
    assert all("lora" in name for name in load_file("adapter/adapter_model.safetensors"))


def test_the_diagrams_are_of_today() -> None:
    diagrams = docs_module("diagrams")
    for name, draw in diagrams.DRAWN.items():
        assert (DOCS / "assets" / name).read_text() == draw(), "run python docs/_site/diagrams.py"
    assert {room for layer in diagrams.layers() for room in layer} <= set(diagrams.ABOUT)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "strip the outputs"
    run_in_a_kernel(notebook, tmp_path)


def run_in_a_kernel(notebook: Any, folder: Path) -> None:
    """Execute all cells; their outputs are in the notebook afterwards."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    resources = {"metadata": {"path": folder}}
    nbclient.NotebookClient(notebook, timeout=280, kernel_name="python3", resources=resources).execute()


# The four lines that the front door promises, with fewer rounds and clients; and what they use.
FRONT_DOOR = """
import numpy as np, torch, fedpriv
from torch import nn
x = np.random.default_rng(0).standard_normal((2000, 20)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int64)
my_arrays, my_module = (x[:1500], y[:1500], x[1500:], y[1500:]), nn.Linear(20, 2)
model, loss, dataset = nn.Linear(20, 2), nn.CrossEntropyLoss(reduction="none"), my_arrays

class Halving(fedpriv.optimizers.BaseOptimizer):
    def update(self, state, answer):
        rate = 4.0 * 0.5 ** (state.step // 20)
        return state.advanced(state.params - rate * answer[0], state.slots)
---
result = fedpriv.simulate(
    dataset="infinite-digits", clients=10_000, optimizer="dp-srm", epsilon=1, rounds=2, sampling_rate=0.01
)
result
---
result = fedpriv.simulate(
    dataset=my_arrays, model=my_module, optimizer=Halving(), clients=1500, sampling_rate=0.1, epsilon=5,
    rounds=3
)
result
---
result = fedpriv.train(
    model, dataset, optimizer=fedpriv.optimizers.dp_adam(1e-3, clip_norm=1), epsilon=3, delta=1e-5,
    sampling_rate=0.01, rounds=5
)
result
---
fedpriv.clipping.clipped_sum(model, loss, x, y, clip_norm=1.0)
---
result.plot()
---
result.to_pandas()
---
few = {"sampling_rate": 0.1, "rounds": 2}
fedpriv.compare(few, dataset=my_arrays, model=my_module, placements=["none", "central"])
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own
def test_the_front_door_works_in_a_notebook(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(part.strip()) for part in FRONT_DOOR.split("---\n")]
    run_in_a_kernel(notebook, tmp_path)
    shown = [
        {kind: text for output in cell.outputs for kind, text in output.get("data", {}).items()}
        for cell in notebook.cells
    ]
    assert [kind for kind in ("text/html", "image/png") if kind in shown[0]] == []
    for data, optimizer in zip(shown[1:4], ("dp-srm", "Halving", "dp-adam, rule=Adam("), strict=True):
        assert f">{optimizer}" in data["text/html"]
        assert "an upper bound" in data["text/html"]
    assert data["text/html"].count("<tr>") > 8
    assert shown[4]["text/plain"].startswith("tensor(")
    assert "image/png" in shown[5]
    assert "accuracy" in shown[6]["text/html"]
    assert "<table>" in shown[7]["text/html"]
    errors = [output for cell in notebook.cells for output in cell.outputs if output.get("name") == "stderr"]
    assert all("Warning" not in output["text"] for output in errors), errors


@pytest.mark.slow
def test_the_walk_through_of_an_optimizer_works(tmp_path: Path) -> None:
    name = "docs/contributing.md"
    for part in ("fedpriv", "tests", "docs", "datasets", "README.md", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    (tmp_path / "fedpriv/optimizers/nesterov.py").write_text(
        next(code for code in code_of(name, "python") if code.startswith("# nesterov.py"))
    )
    (tmp_path / "fedpriv/data/datasets/stripes.py").write_text(
        next(code for code in code_of(name, "python") if code.startswith("# stripes.py"))
    )
    table = tmp_path / "tests/conformance/table.py"
    [row] = (code for code in code_of(name, "python") if code.startswith('"dp-nesterov"'))
    text = table.read_text().replace('        "dp-yogi": Row(', f'{row}\n        "dp-yogi": Row(', 1)
    imports = "import torch\nfrom fedpriv.optimizers.nesterov import DpNesterov\n\nROUNDS, RATE ="
    table.write_text(text.replace("ROUNDS, RATE =", imports, 1))
    run = functools.partial(in_copy, tmp_path)
    assert "nesterov-momentum = 0.9" in run("-m", "fedpriv", "optimizers", "dp-nesterov")
    run("docs/_site/blocks.py")
    assert "| `dp-nesterov` |" in (tmp_path / "README.md").read_text()
    assert "nesterov-momentum = 0.9" in (tmp_path / "pyproject.toml").read_text()
    assert " passed" in run("-m", "pytest", "-q", "-x", "tests/conformance", "-k", "nesterov")
    simulated = ["--set", "optimizer=dp-nesterov", "--set", "model=logistic", "--set", "rounds=2"]
    run("-m", "fedpriv", "simulate", *simulated, "--set", "engine=in-process", "--out", "runs/walk")
    assert "stripes" in run("-c", "from fedpriv import data; print(data.load('stripes').name)")
    assert json.loads((tmp_path / "runs/walk/report.json").read_text())["optimizer"] == "dp-nesterov"


def in_copy(folder: Path, *arguments: str) -> str:
    """The output of Python with these arguments, in a copy of the repository."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
