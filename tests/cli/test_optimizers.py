"""``fedpriv optimizers``, and the settings that the commands' help shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.optimizers import METHODS, OptimizerSettings

HALVING = """
from fedpriv.optimizers import dp_sgd

class Halving:
    def __init__(self, learning_rate=0.5, clip_norm=1.0, *, rounds):
        self.inner = dp_sgd(learning_rate, clip_norm)
        self.init, self.query, self.update = self.inner.init, self.inner.query, self.inner.update
        self.planned = self.inner.planned
"""


def text_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_optimizer_is_listed_with_its_source() -> None:
    text, words = text_of("optimizers"), " ".join(text_of("optimizers").split())
    assert max(map(len, text.splitlines())) <= 80
    for method in METHODS.values():
        assert f"{method.name} {' '.join(method.summary.split())} {method.paper}" in words
    listed = json.loads(text_of("optimizers", "--json"))
    assert [one["optimizer"] for one in listed] == list(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_an_optimizer_is_shown_with_its_settings_and_their_defaults(name: str) -> None:
    method, text = METHODS[name], text_of("optimizers", name)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith(f"{name}: ")
    assert "  learning-rate = " in text
    shown = json.loads(text_of("optimizers", name, "--json"))["settings"]
    averages = {"averaging"} if method.averaging else set()
    assert shown.keys() == {*method.uses, *averages, *method.settings.fields()}
    if method.averaging:
        assert shown["averaging"]["default is"] == f"{method.averaging:g}"
    for key, field in method.settings.fields().items():
        assert f"  {key} = {json.dumps(field.default)}\n" in text
        assert shown[key] == {"default": field.default, "description": field.description, "default is": ""}


def test_an_unknown_optimizer_is_refused_with_the_one_that_was_meant() -> None:
    result = CliRunner().invoke(app, ["optimizers", "dp-sdg"])
    assert result.exit_code == 2
    assert "did you mean 'dp-sgd'?" in result.output


def test_an_optimizer_of_the_user_is_shown_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halving_of_mine.py").write_text(HALVING)
    monkeypatch.chdir(tmp_path)
    text = text_of("optimizers", "halving_of_mine:Halving")
    assert "0 is 0.5" in text
    assert "momentum =" not in text


@pytest.mark.parametrize("command", ["simulate", "train", "compare", "audit", "bench"])
@pytest.mark.parametrize(
    "arguments", [["--help", "--set", "optimizer=dp-srm"], ["--set=optimizer=dp-srm", "--help"]]
)
def test_help_shows_the_chosen_optimizers_settings_by_group(command: str, arguments: list[str]) -> None:
    text = text_of(command, *arguments)
    titles = ["Data and model", "Federation", "Privacy", "Optimizer: common", "Optimizer: dp-srm", "Machine"]
    places = [text.index(f"\n{title}:\n") for title in titles]
    assert places == sorted(places)
    assert "  srm-gamma = 0.5\n" in text
    assert "adadp-" not in text
    assert "momentum = " not in text
    assert max(map(len, text.partition("Settings (in")[2].splitlines())) <= 80


@pytest.mark.parametrize(
    ("dataset", "own"),
    [
        ("infinite-digits", ()),
        ("mine:data", ()),
        ("imdb", ("vocabulary", "sequence-length")),
        ("imdb-bag", ("vocabulary",)),
        ("pneumonia", ("image-size",)),
        ("imbd", ("image-size", "vocabulary", "sequence-length")),  # which one was meant is not known
    ],
)
def test_help_shows_the_chosen_data_sets_settings(dataset: str, own: tuple[str, ...]) -> None:
    text = text_of("simulate", "--help", "--set", f"dataset={dataset}")
    keys = ("image-size", "vocabulary", "sequence-length")
    assert tuple(key for key in keys if f"\n  {key} = 0\n" in text) == own


def test_help_for_an_unknown_optimizer_shows_what_all_share() -> None:
    text = text_of("simulate", "--help", "--set", "optimizer=zzz")
    assert all(f"\n  {key} = " in text for key in OptimizerSettings.fields())


WRONG = [
    "sampling-rat=0.1",
    "optimizer=dp-sdg",
    "srm-gamma=7",
    "beta1=x",
    "model=cnnn",
    "dataset=mnits",
    "sampler=poison",
]


@pytest.mark.parametrize("wrong", WRONG)
def test_typing_errors_are_refused_without_slow_imports(wrong: str) -> None:
    code = (
        "import sys, fedpriv.cli\n"
        f"sys.argv = ['fedpriv', 'simulate', '--set', {wrong!r}]\n"
        "try: fedpriv.cli.main()\n"
        "except SystemExit as end: code = end.code\n"
        "slow = {'torch', 'scipy', 'numpy', 'ray', 'flwr', 'matplotlib', 'sklearn', 'pandas'}\n"
        "print(code, *slow & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n", done.stderr
