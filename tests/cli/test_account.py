"""``fedpriv account`` on ledgers, all methods, plots; ``fedpriv calibrate`` for steps and rates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedpriv.accounting import METHODS, Event, Ledger, epsilon
from fedpriv.accounting.head import Head, HeadFile, head_path
from fedpriv.accounting.ledger import read
from fedpriv.cli import app

SCHEDULE = ["--sampling-rate", 0.01, "--steps", 100, "--noise-multiplier", 3, "--delta", 1e-5]
BUDGET = ["--epsilon", 1, "--delta", 1e-5, "--noise-multiplier", 1]
EVENTS = [Event(3.0 - i / 10, "poisson", "add-remove", rate=0.02) for i in range(5)]
PNG = b"\x89PNG\r\n"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    return line.removeprefix("fedpriv: ")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, {"unit": "client"}) as book:
        book.record(EVENTS)
    return path


def test_a_ledger_is_replayed(ledger: Path) -> None:
    methods = json.loads(call("account", "--ledger", ledger, "--delta", 1e-5, "--json").stdout)["methods"]
    assert list(methods) == list(METHODS)
    for name, cell in methods.items():
        assert cell["epsilon"] == epsilon(EVENTS, 1e-5, name).epsilon
        assert cell["kind"] == ("estimate" if name == "gdp-clt" else "bound")
    title = call("account", "--ledger", ledger, "--delta", 1e-5).stdout.splitlines()[0]
    assert title == f"epsilon at delta 1e-05 of the 5 releases in {ledger}"


def test_a_runs_folder_stands_for_its_ledger_and_has_its_delta(ledger: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("delta = 1e-5\n")
    shown = call("account", "--ledger", tmp_path).stdout
    assert shown == call("account", "--ledger", ledger, "--delta", 1e-5).stdout
    assert shown == call("account", "--ledger", ledger).stdout
    other = tmp_path / "other"
    other.mkdir()
    with Ledger.create(other / "ledger.jsonl", {"unit": "client"}) as book:
        book.record(EVENTS)
    assert f"no run with a delta is in the folder of {other}" in refused("account", "--ledger", other)
    (other / "config.toml").write_text("delta = 1e-6\n")
    both = ["account", "--ledger", tmp_path, "--ledger", other]
    assert f"the runs have 1e-05 ({tmp_path}), 1e-06 ({other}); give the delta" in refused(*both)
    assert call(*both, "--delta", 1e-5).exit_code == 0


def test_a_file_of_noise_says_how_many_releases_there_are(tmp_path: Path) -> None:
    path, rate = tmp_path / "z.csv", ["--sampling-rate", 0.02]
    path.write_text("".join(f"{event.noise_multiplier}\n" for event in EVENTS))
    arguments = ["account", *rate, "--noise-multiplier", path, "--delta", 1e-5, "--method", "rdp"]
    shown = json.loads(call(*arguments, "--json").stdout)["methods"]["rdp"]["epsilon"]
    assert shown == epsilon(EVENTS, 1e-5, "rdp").epsilon
    assert "(it has 5)" in refused(*arguments, "--steps", 4)
    found = call("calibrate", "--epsilon", 1, "--delta", 1e-5, *rate, "--relative-noise", path)
    assert found.stdout.startswith("scale ")
    found = call("calibrate", "--epsilon", 1, "--delta", 1e-5, *rate, "--steps", 5)
    assert found.stdout.startswith("noise multiplier ")
    assert "at the last" not in found.stdout
    path.write_text("\n")
    assert refused(*arguments).endswith("it must be a CSV file that holds numbers")


def test_a_seeded_runs_ledger_is_not_called_private(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, {"unit": "client", "remark": "reproducible, not private (seed 3)"}) as book:
        book.record(EVENTS)
    shown = call("account", "--ledger", path, "--delta", 1e-5).stdout
    assert shown.splitlines()[-1] == "NOTE: reproducible, not private (seed 3)"
    as_data = json.loads(call("account", "--ledger", path, "--delta", 1e-5, "--json").stdout)
    assert as_data["remark"] == "reproducible, not private (seed 3)"


def test_noise_is_not_replaced_by_delta() -> None:
    """Without noise, a sampled unit's data would be released exactly; delta would cover this only because
    sampling is rare."""
    schedule = ["--sampling-rate", 1e-7, "--steps", 10]
    refusal = refused("calibrate", "--epsilon", 1, "--delta", 1e-5, *schedule)
    assert refusal.startswith(
        "delta is 1e-05; it must be below 5e-07 (a unit is sampled with probability 1e-06"
    )
    assert call("calibrate", "--epsilon", 1, "--delta", 1e-8, *schedule).exit_code == 0


def test_hardly_any_noise_is_accounted_without_a_warning() -> None:
    """Privacy losses reach 10^7 and more. pytest turns any warning into an error."""
    arguments = ["--sampler", "fixed-size", "--sampling-rate", 0.1, "--steps", 10, "--noise-multiplier", 1e-3]
    cell = json.loads(call("account", *arguments, "--delta", 1e-5, "--json").stdout)["methods"]["pld"]
    assert 1.2e7 < cell["epsilon_lower"] < cell["epsilon"] < 1.21e7


def test_releases_over_everyone_count_beside_sampled_ones_of_the_other_relation(tmp_path: Path) -> None:
    """A deployed node's ledger has both: runs with local noise, and runs with the node's own private
    steps."""
    local = Event(30.0, "none", "replace-one")
    path = tmp_path / "mixed.jsonl"
    with Ledger.create(path, {"unit": "example"}) as book:
        book.record([local, *EVENTS])
    shown = json.loads(call("account", "--ledger", path, "--delta", 1e-5, "--json").stdout)["methods"]
    wanted = epsilon([replace(local, relation="add-remove"), *EVENTS], 1e-5, "pld").epsilon
    assert shown["pld"]["epsilon"] == wanted


def test_a_runs_cap_on_participations_counts_as_in_its_report(tmp_path: Path) -> None:
    settings: dict[str, object] = {"clients": 300, "sampling-rate": 0.1, "rounds": 5, "model": "logistic"}
    settings |= {"engine": "in-process", "placement": "local", "max-participations": 2}
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    assert call("simulate", *given, "--out", tmp_path / "out").exit_code == 0
    [view, _] = json.loads((tmp_path / "out" / "report.json").read_text())["privacy"]["views"]
    arguments = ["account", "--ledger", tmp_path / "out" / "ledger.jsonl", "--delta", view["delta"]]
    shown = json.loads(call(*arguments, "--json").stdout)["methods"]
    assert shown["pld"]["epsilon"] == pytest.approx(view["epsilon"]["pld"]["epsilon"], rel=1e-9)
    title = call(*arguments).stdout.splitlines()[0]
    assert title.endswith("ledger.jsonl, against the server, for a client that gave data to the 2 costliest")


def test_a_torn_ledger_is_read_and_an_edited_one_refused_with_its_line(ledger: Path) -> None:
    whole = ledger.read_bytes()
    HeadFile.create(head_path(ledger), Head(4, read(ledger).links[4])).close()  # as in a crash
    ledger.write_bytes(whole[:-30])
    result = call("account", "--ledger", ledger, "--delta", 1e-5, "--method", "pld", "--json")
    assert json.loads(result.stdout)["methods"]["pld"]["epsilon"] == epsilon(EVENTS[:4], 1e-5).epsilon
    ledger.write_bytes(whole.replace(b"2.9", b"9.9"))
    assert "line 3 was edited" in refused("account", "--ledger", ledger, "--delta", 1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_one_method_at_a_time(method: str) -> None:
    document = json.loads(call("account", *SCHEDULE, "--method", method, "--json").stdout)
    assert list(document["methods"]) == [method]


def test_the_table_has_all_methods_side_by_side() -> None:
    lines = call("account", *SCHEDULE).stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(METHODS)
    assert [line.split()[-1] for line in lines[2:]] == [method.kind for method in METHODS.values()]
    fixed = call("account", *SCHEDULE, "--sampler", "without-replacement").stdout
    assert "gdp-clt   -" in fixed
    assert "accounting by gdp-clt does not support without-replacement sampling" in fixed


@pytest.mark.parametrize("content", ["", "epsilon = 3\n", '{"round": 2, "accuracy": 0.5}\n', "\0" * 9])
def test_a_file_that_is_no_ledger_is_not_called_edited(content: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(content)
    refusal = refused("account", "--ledger", tmp_path / "metrics.jsonl", "--delta", 1e-5)
    assert refusal.endswith("metrics.jsonl'; it must be the ledger.jsonl of a run (it has nothing of one)")


@pytest.mark.usefixtures("rendered_pictures")
def test_plot_writes_a_picture_or_nothing(ledger: Path, tmp_path: Path) -> None:
    picture = tmp_path / "figures" / "epsilon.png"
    result = call("account", *SCHEDULE, "--plot", picture)
    assert result.stdout.splitlines()[-1] == f"{picture}: epsilon against releases"
    assert picture.read_bytes().startswith(PNG)
    document = call("account", "--ledger", ledger, "--delta", 1e-5, "--plot", picture, "--json").stdout
    assert json.loads(document)["delta"] == 1e-5
    assert [path.name for path in picture.parent.iterdir()] == ["epsilon.png"]
    before = picture.read_bytes()
    assert "delta is 2.0" in refused("account", *SCHEDULE, "--delta", 2, "--plot", picture)
    assert picture.read_bytes() == before


def test_calibrate_solves_for_steps_and_for_the_rate() -> None:
    rate = ["--sampling-rate", 0.01]
    steps = json.loads(call("calibrate", "--solve-for", "steps", *BUDGET, *rate, "--json").stdout)
    assert set(steps) == {"steps", "epsilon", "method"}
    spent = [
        epsilon([Event(1.0, "poisson", "add-remove", 0.01, count=steps["steps"] + n)], 1e-5).epsilon
        for n in (0, 2)
    ]
    assert spent[0] == steps["epsilon"] <= 1 < spent[1]
    by_rate = ["calibrate", "--solve-for", "sampling-rate", *BUDGET, "--steps", 300]
    found = json.loads(call(*by_rate, "--json").stdout)
    assert set(found) == {"sampling_rate", "epsilon", "method"}
    assert 0.99 <= found["epsilon"] <= 1
    text = call("calibrate", "--solve-for", "steps", *BUDGET, *rate).stdout
    assert text.startswith(f"{steps['steps']} releases; spends epsilon 0.99")
    assert call(*by_rate).stdout.startswith("sampling rate 0.0")


REFUSALS: list[tuple[list[object], str]] = [
    (["account", "--noise-multiplier", 1], "--delta is missing; a schedule needs one, such as 1e-5"),
    (["account", "--delta", 1e-5], "--noise-multiplier is missing; a schedule needs it"),
    (["account", "--delta", 1e-5, "--noise-multiplier", 1], "--steps is missing; a schedule needs it"),
    (["account", "--delta", 1e-5, "--steps", 3, "--noise-multiplier", 1], "--sampling-rate is missing"),
    (["account", "--delta", 1e-5, "--ledger", "none"], "--ledger is 'none'; it must be an existing"),
    (["account", "--delta", 1e-5, "--ledger", "a", "--relation", "replace-one"], "be given without"),
    (["account", "--delta", 1e-5, "--ledger", "a", "--sampler", "everyone"], "be given without"),
    (["account", *SCHEDULE, "--sampler", "everyone"], "--sampling-rate is 0.0"),
    (["account", *SCHEDULE, "--ledger", "none.jsonl"], "--ledger is 'none.jsonl'; it must be given without"),
    (["account", *SCHEDULE, "--method", "prv"], "--method is 'prv'; it must be one of pld, rdp,"),
    (["account", *SCHEDULE, "--sampler", "all"], "be one of poisson, fixed-size, everyone, without-repl"),
    (["calibrate", *BUDGET, "--method", "all"], "--method is 'all'; it must be one of pld"),
    (["account", *SCHEDULE, "--plot", "/proc/none/x.png"], "/proc/none"),
    (["calibrate", *BUDGET, "--steps", 3], "--noise-multiplier is '1'; it must be left out"),
    (["calibrate", *BUDGET, "--solve-for", "delta"], "--solve-for is 'delta'"),
    (["calibrate", *BUDGET, "--solve-for", "steps", "--steps", 3], "--steps is 3; it must be left out"),
    (["calibrate", *BUDGET, "--solve-for", "steps"], "--sampling-rate is missing; a schedule needs it"),
    (["calibrate", *BUDGET, "--solve-for", "sampling-rate"], "--steps is missing; a schedule needs it"),
    (
        ["calibrate", *BUDGET, "--solve-for", "sampling-rate", "--steps", 3, "--sampling-rate", 1],
        "--sampling-rate is 1.0; it must be left out",
    ),
]


def test_samplers_have_the_names_of_a_runs_and_of_the_accountants() -> None:
    for own, other in (("fixed-size", "without-replacement"), ("everyone", "none")):
        flags = SCHEDULE[2:] if own == "everyone" else SCHEDULE  # without a rate
        one, two = (call("account", *flags, "--sampler", name, "--json").stdout for name in (own, other))
        assert one == two
        assert json.loads(one)["methods"]["pld"]["epsilon"] > 0
        assert one != call("account", *SCHEDULE, "--json").stdout


def test_a_budget_below_one_release_is_reported() -> None:
    flags = ["--solve-for", "steps", "--epsilon", 0.1, "--delta", 1e-5, "--noise-multiplier", 0.3]
    text = call("calibrate", *flags, "--sampling-rate", 0.5).stdout
    assert text == "0 releases: a single one would pass the budget, by pld\n"


@pytest.mark.parametrize(("arguments", "message"), REFUSALS)
def test_refusals_are_one_line(arguments: list[object], message: str) -> None:
    assert message in refused(*arguments)


def test_unsampled_schedules_need_no_rate() -> None:
    flags = ["--sampler", "none", "--delta", 1e-5]
    plain = call("account", *flags, "--steps", 4, "--noise-multiplier", 2, "--method", "pld", "--json")
    exact = epsilon([Event(2.0, "none", "add-remove", count=4)], 1e-5)
    assert json.loads(plain.stdout)["methods"]["pld"]["epsilon"] == exact.epsilon
    flags += ["--epsilon", 2, "--noise-multiplier", 10, "--json"]
    steps = call("calibrate", "--solve-for", "steps", *flags)
    assert json.loads(steps.stdout)["steps"] == 25
