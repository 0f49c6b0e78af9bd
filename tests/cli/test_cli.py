"""The command line: exit codes, one-line refusals, JSON, plain text, and Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from helpers.small import SMALL, small, write_mnist
from typer.testing import CliRunner

import fedpriv
from fedpriv import data
from fedpriv._internal.settings import choices
from fedpriv._internal.validation import ArgumentError
from fedpriv.accounting import METHODS
from fedpriv.accounting import ledger as ledgers
from fedpriv.cli import app
from fedpriv.cli.simulate import given as settings_of
from fedpriv.config.plan import make_plan
from fedpriv.config.reading import read_assignment
from fedpriv.config.schema import Config
from fedpriv.data import loaders
from fedpriv.data.registry import own_settings
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.worker import Worker
from fedpriv.mechanism.settings import owned
from fedpriv.models import MODELS
from fedpriv.optimizers import METHODS as OPTIMIZERS
from fedpriv.report.notices import notes
from fedpriv.runs.run_dir import COMPARISON_FILES, FILES

ROOT = Path(__file__).parents[2]


def settings(**changes: object) -> list[str]:
    """The options of the small configuration with these keys (underscores for hyphens) changed."""
    values = {**SMALL, **{key.replace("_", "-"): value for key, value in changes.items()}}
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


SETTINGS = settings()


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object, code: int = 2) -> str:
    """The one line with which the command refuses."""
    result = call(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("fedpriv: ")
    return line.removeprefix("fedpriv: ")


def test_simulate_prints_plain_lines_and_leaves_a_folder(tmp_path: Path) -> None:
    result = call("simulate", *SETTINGS, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "400 clients on infinite-digits, logistic, dynamic-dp-sgd, 6 rounds, central noise"
    assert lines[1].startswith("budget epsilon 3, delta 0.00025, enforced by pld; noise multiplier ")
    assert [line.split("  ")[0] for line in lines[2:5]] == ["round 2/6", "round 4/6", "round 6/6"]
    assert lines[5].startswith("all rounds done; test accuracy ")
    assert len(lines) == 7
    assert "\x1b" not in result.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(FILES)


def test_simulate_says_how_many_examples_clients_truly_have(tmp_path: Path) -> None:
    """A finite data set is divided whole, whatever examples-per-client says."""
    partitioned = {"partition": "dirichlet", "clients": 100, "rounds": 1, "sampling_rate": 0.1}
    for changes, sizes in (
        ({"dataset": "digits"}, "100 clients of 14.37 examples on average on digits, "),
        ({"examples_per_client": 20}, "100 clients of 20 examples on average on infinite-digits, "),
    ):
        result = call(
            "simulate",
            *settings(**partitioned, **changes),
            "--out",
            tmp_path / str(len(changes)),
            "--overwrite",
        )
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(sizes)


def test_simulate_says_what_silos_do_by_themselves_and_account_reads_their_ledger(tmp_path: Path) -> None:
    silos = {"level": "client", "unit": "example", "clients": 3, "examples_per_client": 50, "silo_steps": 2}
    result = call("simulate", *settings(**silos), "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == (
        "3 silos of 50 examples on infinite-digits, logistic, dynamic-dp-sgd, 6 rounds of 2 private steps, "
        "central noise in each silo"
    )
    ledger = ("--ledger", tmp_path / "out" / "ledger.jsonl", "--delta", 1 / 1500)
    [spent] = json.loads(call("account", *ledger, "--method", "pld", "--json").stdout)["methods"].values()
    assert 0.99 * 3 <= spent["epsilon"] <= 3


def test_simulate_json_is_one_document_on_standard_output(tmp_path: Path) -> None:
    result = call("simulate", *SETTINGS, "--out", tmp_path / "out", "--seed", 4, "--json")
    document = json.loads(result.stdout)
    assert document["out"] == str(tmp_path / "out")
    assert document["remark"] == "reproducible, not private (seed 4)"
    assert document["result"]["stopped"] == "rounds"
    assert document["privacy"]["views"][0]["epsilon"]["pld"]["epsilon"] <= 3
    assert "NOTE: reproducible, not private (seed 4)" in result.stderr


def test_a_file_gives_settings_and_flags_win(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(Config.parse({**SMALL, "rounds": 3, "seed": 1}).toml())
    flags = ["--set", "rounds=2", "--set", "rounds=2", "--out", tmp_path / "out", "--json"]
    result = call("simulate", file, *flags)
    document = json.loads(result.stdout)
    assert document["result"]["rounds"] == 2
    assert document["reproducibility"]["seed"] == 1


REFUSALS: list[Any] = [
    (["--set", "sampling-rat=1"], "unknown key 'sampling-rat'; did you mean 'sampling-rate'?"),
    (["--set", "sampling-rate=2"], "sampling-rate is 2; it must be at most 1 (it is the expected part"),
    (["--set", "epsilon=nan"], "epsilon is nan; it must "),
    (["--set", "epsilon=nan", "--set", "epsilon=nan"], "epsilon is nan; it must "),
    (["--set", "rounds=true"], "rounds is True; it must be a whole number"),
    (["--set", "rounds"], "--set is 'rounds'; it must be KEY=VALUE in one word (write --set rounds=VALUE)"),
    (["--set", "rounds", "10"], "(write --set rounds=10)"),
    (["rounds=10"], "CONFIG is 'rounds=10'; it must be an existing TOML file (write --set rounds=10)"),
    (["none.toml"], "CONFIG is 'none.toml'; it must be an existing TOML file"),
    (["--seed", "-3"], "--seed is -3; it must be a whole number of at least 0"),
    (["--set", "optimizer=dpsgd"], "optimizer is 'dpsgd'; did you mean 'dp-sgd'?"),
    (
        ["--set", "optimizer=dp-sgd", "--set", "rho-mu=2"],
        "rho-mu is 2.0, which needs optimizer=dynamic-dp",
    ),
    (["--set", "dataset=mnits"], "dataset is 'mnits'; did you mean 'mnist'?"),
    (["--set", "dataset=mnist", "--set", "data-folder=/nowhere"], "run `fedpriv data fetch mnist`"),
    (["--set", "device=abacus"], "device is 'abacus'"),
    (["--set", "nodes-own-data=true"], "it is for deployments"),
    (["--set", "delta=0.5"], "delta is 0.5; it must be below 1 / units"),
]


@pytest.mark.parametrize("command", ["simulate", "compare"])
@pytest.mark.parametrize(("arguments", "message"), REFUSALS)
def test_refusals_are_one_line_and_come_before_any_work(
    command: str, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(command, *arguments, "--out", "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "key", "value", "note"),
    [
        (
            ["--set", "epsilon=1", "--set", "epsilon=2"],
            "epsilon",
            2,
            "--set epsilon=1 is replaced by --set epsi",
        ),
        (
            ["--set", "clip_norm=1", "--set", "clip-norm=2"],
            "clip-norm",
            2,
            "--set clip_norm=1 is replaced by",
        ),
        (
            ["--seed", "1", "--set", "seed=2"],
            "seed",
            2,
            "--seed 1 is replaced by --set seed=2, which comes later",
        ),
        (
            ["--set", "seed=2", "--seed=1"],
            "seed",
            1,
            "--set seed=2 is replaced by --seed 1, which comes later",
        ),
        (["--set", "rounds=2", "--set", "rounds=2"], "rounds", 2, ""),
    ],
)
def test_the_last_value_of_a_setting_counts_and_a_note_says_so(
    arguments: list[str], key: str, value: float, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Config] = []
    monkeypatch.setattr("fedpriv.cli.simulate.new", found.append)
    monkeypatch.setattr("fedpriv.cli.simulate.run_one", lambda prepared, as_json: prepared())
    result = call("simulate", *arguments)
    assert found[0].table()[key] == value
    assert result.stdout == ""
    assert result.stderr.startswith(f"NOTE: {note}") if note else result.stderr == ""


def test_an_unknown_command_is_refused_with_the_one_that_was_meant() -> None:
    assert "There is no command 'simulat'. Did you mean 'simulate'?" in call("simulat").stderr
    assert "There is no command 'run'. Did you mean 'simulate'?" in call("run").stderr
    assert "There is no command 'shw'. Did you mean 'show'?" in call("data", "shw").stderr


def test_an_existing_folder_needs_overwrite(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "(or give --overwrite)" in refused("simulate", *SETTINGS, "--out", tmp_path)
    assert call("simulate", *SETTINGS, "--out", tmp_path, "--overwrite").exit_code == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert "be a folder, not a file" in refused("simulate", *SETTINGS, "--out", tmp_path / "notes.txt")


@pytest.mark.parametrize("command", ["simulate", "train", "compare"])
@pytest.mark.parametrize("out", ["afile/x", "afile/x/y", "/proc/x"])
def test_a_folder_that_cannot_be_written_is_refused_before_any_output(
    command: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").touch()
    chosen = ["--set", "dataset=digits", "--set", "sampling-rate=0.1", "--set", "clients=400"]
    flags = chosen[:4] if command == "train" else chosen
    refusal = refused(command, *flags, "--set", "rounds=2", "--out", out)
    assert refusal.startswith(f"out is {out!r}; it must be a folder to write to (")
    assert [path.name for path in tmp_path.iterdir()] == ["afile"]


def test_help_lists_every_setting_with_its_default() -> None:
    text = call("simulate", "--help").stdout
    chosen = {**Config.fields(), **Config.parse({}).method.settings.fields()}
    unused = {"beta1", "beta2", "adam-epsilon"}  # of other optimizers, data sets and placements
    unused |= {key for kind in own_settings() for key in kind.fields()} | set(owned())
    for key, default in ((k, f.default) for k, f in chosen.items() if k not in unused):
        assert f"{key} = {json.dumps(default)}" in text
    assert "Ctrl-C" in text
    words = " ".join(text.split())
    assert "one of: dp-sgd, dp-adam, dp-rmsprop," in words
    assert "adadps, pda-dpmd, noisy-adagrad, private-spiderboost, dp-gd, rrpsgd" in words
    assert "one of: poisson (each unit joins independently), cyclic-poisson" in words
    commands = call("--help").stdout
    assert all(name in commands for name in ("simulate", "compare", "account", "calibrate", "data"))


@pytest.mark.parametrize("command", ["simulate", "train", "compare", "bench"])
def test_a_setting_written_as_an_option_gets_a_hint(command: str) -> None:
    for given in (["--sampling-rate", "0.1"], ["--sampling-rate=0.1"]):
        result = call(command, *given)
        assert result.exit_code == 2
        assert "sampling-rate is a setting; give it as --set sampling-rate=VALUE" in result.stderr
    assert "No such option" in call(command, "--no-such-thing").stderr


def test_small_budgets_show_their_digits(tmp_path: Path) -> None:
    shown = call("simulate", *SETTINGS, "--set", "epsilon=0.0001", "--out", tmp_path / "out").stdout
    assert re.search(r"epsilon [1-9]\.\d\de-0[56] of 0\.0001", shown), shown
    arguments = ["--epsilon", 1e-6, "--delta", 1e-6, "--sampling-rate", 0.01, "--steps", 10]
    assert re.search(r"spends epsilon 9\.\d+e-07 by pld", call("calibrate", *arguments).stdout)


@pytest.mark.usefixtures("rendered_pictures")
def test_compare_prints_one_table_and_leaves_every_run(tmp_path: Path) -> None:
    placements = "none, central, local,central"
    result = call("compare", *SETTINGS, "--placements", placements, "--out", tmp_path / "out", "--seed", 1)
    assert result.exit_code == 0, result.output
    assert "defends against" in result.stdout
    assert "central: reproducible, not private (seed 1)" in result.stdout
    assert "at most 1 release and sends noise only after that (max-participations=1;" in result.stdout
    assert "Budget of each: epsilon 3 at delta" in result.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names > {"central", "local", "results.csv", *COMPARISON_FILES}
    stamp = (tmp_path / "out" / "central" / "ledger.jsonl").stat().st_mtime_ns
    placements = "none,central,local"
    again = call(
        "compare", *SETTINGS, "--placements", placements, "--out", tmp_path / "out", "--seed", 1, "--json"
    )
    none, central, local = json.loads(again.stdout)
    assert none["placement"] == "none"
    assert none["remark"] == "not private: no noise is added; reproducible, not private (seed 1)"
    assert "The run none is NOT PRIVATE" in again.stderr
    assert central["epsilon against the server"] is None
    assert central["epsilon against who sees the models"] <= 3
    assert local["placement"] == "local"
    assert (tmp_path / "out" / "central" / "ledger.jsonl").stat().st_mtime_ns == stamp
    unused = refused("compare", *SETTINGS, "--placements", "central", "--set", "max-participations=3")
    assert "max-participations is 3; it must be left out: none of central uses it" in unused
    assert "--placements is 'centre'" in refused("compare", *SETTINGS, "--placements", "centre")


EVENTS = ["--sampling-rate", 0.01, "--steps", 100, "--delta", 1e-5]


def test_account_json_has_the_documented_shape() -> None:
    document = json.loads(call("account", *EVENTS, "--noise-multiplier", 1, "--json").stdout)
    assert document["delta"] == 1e-5
    methods = document["methods"]
    assert set(methods) == {"pld", "rdp", "gdp-clt", "tcdp", "zcdp", "advanced"}
    assert set(methods["pld"]) == {"epsilon", "epsilon_lower", "kind"}
    assert methods["pld"]["kind"] == methods["rdp"]["kind"] == "bound"
    assert set(methods["gdp-clt"]) == {"epsilon", "kind"}
    assert methods["gdp-clt"]["kind"] == "estimate"
    assert methods["pld"]["epsilon_lower"] <= methods["pld"]["epsilon"] <= methods["rdp"]["epsilon"]


def test_account_reads_a_schedule_and_other_samplers(tmp_path: Path) -> None:
    schedule = tmp_path / "z.csv"
    schedule.write_text("1.0\n" * 100)
    of_file, of_number = (
        json.loads(call("account", *EVENTS, "--noise-multiplier", z, "--method", "pld", "--json").stdout)
        for z in (schedule, 1)
    )
    assert of_file == of_number
    fixed = call("account", *EVENTS, "--noise-multiplier", 1, "--sampler", "without-replacement").stdout
    assert "does not support" in fixed
    assert "gdp-clt does not support" in refused(
        "account", *EVENTS, "--noise-multiplier", 1, "--sampler", "without-replacement", "--method", "gdp-clt"
    )


def test_account_prints_a_plain_table() -> None:
    lines = call("account", *EVENTS, "--noise-multiplier", 1).stdout.splitlines()
    assert lines[0] == "epsilon at delta 1e-05"
    assert lines[1].split() == ["method", "epsilon", "lower", "bound", "kind"]
    assert [line.split()[0] for line in lines[2:]] == list(METHODS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--sampling-rate", 2], "sampling-rate"),
        (["--steps", -1], "steps"),
        (["--delta", 0], "delta"),
        (["--noise-multiplier", -1], "noise-multiplier"),
        (["--noise-multiplier", "none.csv"], "--noise-multiplier is 'none.csv'; it must be an existing"),
        (["--sampler", "shuffled"], "sampler"),
        (["--relation", "swap"], "relation"),
        (["--sampler", "without-replacement", "--relation", "add-remove"], "relation"),
        (["--method", "moments"], "moments"),
    ],
)
def test_account_refuses_in_one_line(changes: list[object], message: str) -> None:
    assert message in refused("account", *EVENTS, "--noise-multiplier", 1, *changes)


def test_calibrate_spends_its_budget_by_account(tmp_path: Path) -> None:
    relative = tmp_path / "r.csv"
    relative.write_text("".join(f"{2 - t / 100}\n" for t in range(100)))
    answer = call("calibrate", "--epsilon", 1, *EVENTS, "--relative-noise", relative, "--json")
    document = json.loads(answer.stdout)
    assert set(document) == {"scale", "noise_multiplier_first", "noise_multiplier_last", "epsilon", "method"}
    assert document["noise_multiplier_first"] == pytest.approx(2 * document["scale"])
    assert document["noise_multiplier_last"] == pytest.approx(1.01 * document["scale"])
    assert 0.99 <= document["epsilon"] <= 1
    schedule = tmp_path / "z.csv"
    schedule.write_text("".join(f"{document['scale'] * (2 - t / 100)!r}\n" for t in range(100)))
    spent = json.loads(
        call("account", *EVENTS, "--noise-multiplier", schedule, "--method", "pld", "--json").stdout
    )
    assert spent["methods"]["pld"]["epsilon"] == pytest.approx(document["epsilon"], rel=1e-6)


def test_calibrate_prints_a_sentence_and_refuses_in_one_line() -> None:
    assert call("calibrate", "--epsilon", 1, *EVENTS).stdout.startswith("noise multiplier 0.9026")
    assert "epsilon" in refused("calibrate", "--epsilon", -1, *EVENTS)
    assert "none.csv" in refused("calibrate", "--epsilon", 1, *EVENTS, "--relative-noise", "none.csv")
    rate = ["--solve-for", "sampling-rate", "--noise-multiplier", 5, "--steps", 10, "--delta", 1e-5]
    message = "--sampler is 'everyone'; it must draw cohorts where --solve-for is sampling-rate"
    assert message in refused("calibrate", "--epsilon", 1, *rate, "--sampler", "everyone")


def test_data_list_shows_which_data_sets_are_present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    rows = [line.split()[:2] for line in call("data", "list").stdout.splitlines()]
    assert ["digits", "yes"] in rows
    assert ["mnist", "no"] in rows
    write_mnist(tmp_path, 1)
    assert ["mnist", "yes"] in [line.split()[:2] for line in call("data", "list").stdout.splitlines()]
    sets = {row["data set"]: row for row in json.loads(call("data", "list", "--json").stdout)}
    assert (sets["mnist"]["at hand"], sets["cifar-10"]["at hand"]) == (True, False)
    assert "synthetic(1, 1)" in call("data", "list").stdout


def test_data_info_says_what_a_data_set_is() -> None:
    known = call("data", "info", "imdb").stdout
    for text in (
        "256 tokens of 10000",
        "vocabulary (default 10000), sequence-length (default 256)",
        "licence:",
        "Maas",
        "aclImdb_v1.tar.gz, 84,125,825 bytes, SHA-256 known",
    ):
        assert text in known
    assert "SHA-256 of what is in it known" in call("data", "info", "names").stdout
    assert "no hash known: a fetch needs --sha256" in call("data", "info", "ijcnn1").stdout
    assert "made from:  digits" in call("data", "info", "infinite-digits").stdout
    assert "dataset is 'x'" in refused("data", "info", "x")
    document = json.loads(call("data", "info", "imdb", "--json").stdout)
    assert document["options"] == {"vocabulary": 10000, "sequence-length": 256}
    assert (document["at hand"], document["made from"]) == (loaders.at_hand("imdb"), [])
    [archive] = [file for file in document["files"] if file["name"] == "aclImdb_v1.tar.gz"]
    assert archive == {
        "name": "aclImdb_v1.tar.gz",
        "bytes": 84125825,
        "optional": False,
        "vouched for by": "SHA-256 known",
    }
    assert "--sha256 ijcnn1.bz2=DIGEST" in call("data", "fetch", "ijcnn1").stderr


OWN_DATA = """
import numpy as np
from fedpriv.data import Arrays

X, Y = np.zeros((6, 2), np.int32), np.arange(6) % 2

def images():
    return Arrays("images", np.zeros((6, 3, 8, 9), np.uint8), Y, np.zeros((2, 3, 8, 9), np.uint8), Y[:2], 2)

def rated():
    return Arrays("rated", X, Y / 2, X[:2], Y[:2] / 2, tokens=(5, 7), target="value", owners=Y)

def words():
    return Arrays("words", X, np.eye(6), X[:2], np.eye(6)[:2], 6, tokens=(50,), target="tags")

def broken():
    return Arrays("broken", X, Y, X, Y)
"""


def test_data_info_and_show_support_user_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "infos_own.py").write_text(OWN_DATA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = {
        "images": ("data of your own: 6 training, 2 test", "3x8x9 pixels", "2 labels"),
        "rated": ("data of your own: 6 training, of 2 clients, 2 test", "ids below 5, 7", "a value"),
        "words": ("data of your own: 6 training, 2 test", "2 tokens of 50", "6 tags"),
    }
    for name, known in found.items():
        document = json.loads(call("data", "info", f"infos_own:{name}", "--json").stdout)
        assert tuple(document[key] for key in ("what it is", "an example", "to predict")) == known
        assert document["files"] == []
    assert "to predict: 2 labels" in call("data", "info", "infos_own:images").stdout
    broken = call("data", "info", "infos_own:broken")
    assert broken.exit_code == 2
    assert "classes is None" in broken.stderr
    assert f'File "{tmp_path / "infos_own.py"}", line' in broken.stderr
    assert "your own is named module:name" in refused("data", "info", "own")
    assert "Your own data set is named module:name" in call("data", "list").stdout
    new = tmp_path / "new" / "folder" / "x.png"
    assert call("data", "show", "infos_own:images", "--count", 2, "--out", new).exit_code == 0
    assert new.is_file()
    for name in ("rated", "words"):
        table = call("data", "show", f"infos_own:{name}", "--count", 3)
        assert table.exit_code == 0
        assert len(table.stdout.splitlines()) == 4
    assert "at most 1,024" in " ".join(call("data", "show", "--help").stdout.split())


def test_data_show_draws_a_grid_or_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    picture = tmp_path / "digits.png"
    assert call("data", "show", "digits", "--out", picture, "--count", 9).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = call("data", "show", "digits", "--out", picture, "--count", 5).stdout.splitlines()
    assert shown == [f"{picture}: 5 examples from index 0; in its rows the labels", "0 1 2", "3 4"]
    shown = call("data", "show", "digits", "--out", picture, "--first", 1430).stdout.splitlines()
    assert shown[0].startswith(f"{picture}: 7 examples")
    assert "dataset is 'x'" in refused("data", "show", "x")
    for count in (0, 1025):
        assert f"--count is {count}; it must be a whole number from 1 to 1,024" in refused(
            "data", "show", "digits", "--count", count
        )
    assert "--first is 1437; it must be below 1,437" in refused("data", "show", "digits", "--first", 1437)
    assert "fedpriv data fetch mnist" in refused("data", "show", "mnist")
    assert str(picture) in refused("data", "show", "digits", "--out", picture / "x.png")


def test_data_fetch_refuses_what_it_does_not_know() -> None:
    assert "dataset is 'x'" in refused("data", "fetch", "x")
    assert refused("data", "fetch", "mine:data").startswith(
        "dataset is 'mine:data'; it must be a name from `fedpriv data list` (your own data is not fetched"
    )
    assert "--sha256 is 'abc'" in refused("data", "fetch", "mnist", "--sha256", "abc")
    assert "nothing to fetch" in call("data", "fetch", "digits").stdout


def test_an_engine_that_fails_is_one_line_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpriv.flower.topology import EngineError

    def fails(self: object, request: object) -> None:
        raise EngineError("every node is gone")

    monkeypatch.setattr("fedpriv.federated.worker.Worker.gather", fails)
    result = call("simulate", *SETTINGS, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("fedpriv: every node is gone\n")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["result"]["stopped"] == "failed"


def noted(output: str) -> list[str]:
    """The notes, without the two that small runs always get: a drowned signal, and guessing."""
    small = "the noise may drown the signal", "is that of guessing"
    notes = [line for line in output.splitlines() if line.startswith("NOTE: ")]
    return [line for line in notes if not any(text in line for text in small)]


NOTES: list[Any] = [
    ({"placement": "none", "epsilon": 1}, "epsilon=1.0 has no effect: placement=none adds no noise"),
    ({"placement": "none", "delta": 1e-7, "accounting": "rdp"}, "delta=1e-07, accounting=rdp has no effect"),
    ({"epsilon": 1e6}, "epsilon 1e+06 gives almost no protection: one unit's data may make an outcome"),
    ({"epsilon": 20.5}, "e^20.5 times as likely"),
    ({"clients": 99}, "delta 0.00101 is large: publishing the data of one unit in 990"),
    ({"sampling-rate": 0.002}, "the expected cohort size is 0.8"),
    (
        {"sampler": "fixed-size", "sampling-rate": 0.0037},
        "the cohort size is rounded to 1 of 400 units",
    ),
]


@pytest.mark.parametrize(("changes", "note"), NOTES)
def test_unusual_but_valid_settings_get_a_note_before_the_run(
    changes: dict[str, Any], note: str, tmp_path: Path
) -> None:
    result = call("simulate", *settings(**changes, rounds=2), "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = noted(result.stdout)
    assert any(note in line for line in found), result.stdout
    assert len(found) == 1 + (changes.get("placement") == "none")


def test_nothing_is_noted_of_a_run_that_is_not_odd(tmp_path: Path) -> None:
    for placement in ("none", "central"):
        chosen = settings(placement=placement, sampler="fixed-size", clients=100, epsilon=3, rounds=2)
        result = call("simulate", *chosen, "--out", tmp_path / placement)
        assert len(noted(result.stdout)) == (placement == "none"), result.stdout
    assert notes(make_plan(small(epsilon=20.0))) == []


def test_a_run_that_replaces_another_says_that_they_add_up(tmp_path: Path) -> None:
    out = ["--out", tmp_path / "out"]
    assert "add up" not in call("simulate", *SETTINGS, *out).stdout
    again = call("simulate", *SETTINGS, *out, "--overwrite")
    releases = make_plan(small()).mechanism.rounds
    said = f"NOTE: overwriting {tmp_path / 'out'} removes the ledger of an earlier run ({releases} releases)."
    assert said in again.stdout
    (tmp_path / "out" / "ledger.jsonl").write_text("{}\n")
    again = call("train", *settings(dataset="digits", rounds=1, clients=1), *out, "--overwrite", "--json")
    assert again.exit_code == 0, again.output
    assert "removes a ledger that cannot be read. Runs on the same data add up" in again.stderr
    one = small(rounds=1, overwrite=True)
    result = fedpriv.simulate(one, folder=tmp_path / "out")
    assert any("(1 release). Runs on the same data add up" in note for note in result.notes)


@pytest.mark.slow
def test_compare_gives_each_note_about_the_runs_with_noise_once(tmp_path: Path) -> None:
    chosen = [*settings(clients=50, epsilon=1, rounds=2), "--placements", "none,central,local"]
    result = call("compare", *chosen, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert noted(result.stdout) == [
        "NOTE: delta 0.002 is large: publishing the data of one unit in 500 would satisfy it; choose a "
        "smaller delta"
    ]
    assert "NOTE: local: the noise may drown the signal" in result.stdout


def test_a_run_whose_loss_is_not_finite_says_so_at_its_end(tmp_path: Path) -> None:
    lost = settings(placement="none", clip_norm="inf", learning_rate=1e38, rounds=2)
    note = "the public test loss is not finite: the model has diverged; a smaller learning-rate may help"
    result = call("simulate", *lost, "--out", tmp_path / "out", "--seed", 1)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[-3].startswith("all rounds done; ")
    assert lines[-2] == f"NOTE: {note}"
    quiet = call("simulate", *lost, "--out", tmp_path / "quiet", "--seed", 1, "--json")
    assert f"NOTE: {note}" in quiet.stderr
    assert json.loads(quiet.stdout)["result"]["loss"] is None
    compared = call("compare", *lost, "--placements", "none", "--out", tmp_path / "compared")
    assert f"none: {note}" in compared.stdout


@pytest.mark.parametrize(("name", "named"), [("state", "out/state.safetensors"), ("ledger", "out")])
def test_a_full_disk_names_where_it_is_full_and_how_the_run_goes_on(
    name: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, sync = [], os.fsync

    def full(handle: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{handle}"):
            written.append(handle)
            if len(written) > 2:
                raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        result = call("simulate", *SETTINGS, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"fedpriv: {tmp_path / named}: No space left on device",
        f"`fedpriv resume {tmp_path / 'out'}` continues from the last evaluation once the cause is removed",
    ]
    refused = call("resume", tmp_path / "out", "--ray-address", "127.0.0.1:1")
    assert refused.exit_code == 2
    assert "--ray-address is '127.0.0.1:1'; it must be left out" in refused.output
    again = call("resume", tmp_path / "out")
    assert again.exit_code == 0, again.output


def test_ctrl_c_ends_after_the_round_whenever_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while round 3 is gathered, in code that swallows every exception."""
    gather, handler = Worker.gather, signal.getsignal(signal.SIGINT)

    def interrupted(self: Worker, request: SumRequest) -> PartialSum:
        if request.release == 2:
            with contextlib.suppress(BaseException):
                signal.raise_signal(signal.SIGINT)
        return gather(self, request)

    monkeypatch.setattr(Worker, "gather", interrupted)
    result = call("simulate", *SETTINGS, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["result"]["stopped"] == "interrupted"
    assert (report["result"]["rounds"], report["privacy"]["releases"]) == (3, 3)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_schedulers_sigterm_ends_a_run_as_ctrl_c_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather, handler = Worker.gather, signal.getsignal(signal.SIGTERM)

    def terminated(self: Worker, request: SumRequest) -> PartialSum:
        if request.release == 1:
            signal.raise_signal(signal.SIGTERM)
        return gather(self, request)

    monkeypatch.setattr(Worker, "gather", terminated)
    assert call("simulate", *SETTINGS, "--out", tmp_path / "out").exit_code == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["result"]["stopped"], report["result"]["rounds"]) == ("interrupted", 2)
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_with_a_valid_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    # So many rounds that the run cannot end by itself; their noise is equal, so accounting is fast.
    long = settings(rounds=20000, optimizer="dp-sgd", evaluate_every=20000)
    command = [sys.executable, "-m", "fedpriv", "simulate", *long, "--out", str(out)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not (out / "ledger.jsonl").exists() or (out / "ledger.jsonl").stat().st_size < 2000:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    assert "interrupted; what was charged stays charged" in stdout
    assert "Traceback" not in stderr
    assert {path.name for path in out.iterdir()} == set(FILES)
    report = json.loads((out / "report.json").read_text())
    assert report["result"]["stopped"] == "interrupted"
    assert len(ledgers.read(out / "ledger.jsonl").events) == report["privacy"]["releases"] > 5


def test_the_readmes_settings_and_links_are_real() -> None:
    text = (ROOT / "README.md").read_text()
    settings = re.findall(r"--set (\S+=\S+)", text) + re.findall(r"`([a-z-]+=[a-z-]+)`", text)
    assert len(settings) > 8
    for setting in settings:
        Config.parse(dict([read_assignment(setting)]))
    mentioned = set(re.findall(r"`([a-z]+-[a-z]+)`", text))
    words = {word for field in Config.all_fields().values() for word in choices(field)}
    assert mentioned <= {*Config.keys(), *words, *data.names(), *MODELS, *OPTIMIZERS}
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), link


def test_help_and_refusals_do_not_wait_for_torch() -> None:
    """All commands run in one process, because a process takes a while to start."""
    program = """
import sys
from typer.testing import CliRunner
from fedpriv.cli import app
def run(*words):
    result = CliRunner().invoke(app, words)
    assert "torch" not in sys.modules, words
    return result
def widest(result):
    return max(len(line) for line in result.stdout.splitlines())
commands = "simulate train compare sweep report resume audit bench account calibrate optimizers data".split()
of_data = [["data", name] for name in "list info fetch show".split()]
for words in ([], *([name] for name in commands), *of_data):
    shown = run(*words, "--help")
    assert shown.exit_code == 0, words
    assert widest(shown) <= 80, (words, widest(shown))
for name in ("simulate", "train", "compare", "audit", "bench"):
    assert run(name, "--set", "optimizer=sgd").exit_code == 2
print(run("--version").stdout)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_the_version_is_printed() -> None:
    from fedpriv import __version__

    assert call("--version").stdout.strip() == __version__


def test_ctrl_c_before_the_first_round_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(config: Config) -> None:
        raise KeyboardInterrupt

    refusal = "interrupted before any work; nothing was charged for it\n"
    monkeypatch.setattr("fedpriv.config.plan.make_plan", interrupted)
    result = call("simulate", *SETTINGS, "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (130, refusal)
    monkeypatch.setattr("fedpriv.simulation.compare.plans", lambda config, names: interrupted(config))
    result = call("compare", *SETTINGS, "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (130, refusal)
    assert not (tmp_path / "out").exists()


def test_the_command_line_wins_over_a_file_however_keys_are_written(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("sampling_rate = 0.1\nrounds = 7\n")
    values = settings_of(file, ["sampling-rate=0.5", "clip_norm=3", "clip-norm=3"], None, None, False)
    assert values == {"sampling-rate": 0.5, "rounds": 7, "clip-norm": 3}
    file.write_text("sampling_rate = 0.1\nsampling-rate = 0.2\n")
    with pytest.raises(ArgumentError, match="sampling-rate is given twice"):
        settings_of(file, None, None, None, False)
