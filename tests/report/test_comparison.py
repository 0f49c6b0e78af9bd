"""Comparisons of runs: the settings that name them, means of repetitions, and refused combinations."""

from __future__ import annotations

import errno
import json
import os
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.small import small
from typer.testing import CliRunner

from fedpriv._internal.validation import ArgumentError
from fedpriv.cli import app
from fedpriv.config.plan import make_plan
from fedpriv.node.factory import make_worker
from fedpriv.report import comparison
from fedpriv.report.comparison_table import table
from fedpriv.report.page import folders as found_in
from fedpriv.report.page.page import page
from fedpriv.runs.result import load_result
from fedpriv.runs.run_dir import RunFolder
from fedpriv.runs.runner import Status, execute


def left(folder: Path, **changes: object) -> Path:
    """The folder of a run."""
    config = small(rounds=4, **changes)
    execute(make_plan(config), make_worker(config.table()), RunFolder.create(folder))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpriv.report.plots.curves", lambda *arguments: b"")
        folder = tmp_path_factory.mktemp("runs")
        for seed in (1, 2, 3):
            left(folder / f"sgd-{seed}", optimizer="dp-sgd", seed=seed)
        left(folder / "adam", optimizer="dp-adam", learning_rate=0.0)
        left(folder / "open", optimizer="dp-sgd", placement="none")
        left(folder / "estimate", optimizer="dp-sgd", accounting="gdp-clt", epsilon=1.0)
    return folder


def test_repetitions_are_one_row(runs: Path) -> None:
    sgd, adam = comparison.read([*(runs / f"sgd-{seed}" for seed in (1, 2, 3)), runs / "adam"])
    # The default step size is another for Adam; 1.0 was given to the others.
    assert sgd.name == "optimizer=dp-sgd, learning-rate=1.0"
    assert adam.name == "optimizer=dp-adam, learning-rate=0.01"
    assert [len(group.runs) for group in (sgd, adam)] == [3, 1]
    scores = [
        json.loads((runs / f"sgd-{seed}" / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"]
        for seed in (1, 2, 3)
    ]
    data = sgd.json()
    assert data["mean"] == pytest.approx(statistics.fmean(scores))
    assert data["spread"] == pytest.approx(statistics.stdev(scores))
    assert data["remarks"] == [f"reproducible, not private (seed {seed})" for seed in (1, 2, 3)]
    report = json.loads((runs / "sgd-1" / "report.json").read_text())
    [view] = report["privacy"]["views"]
    assert (data["epsilon"], data["kind"]) == (view["epsilon"]["pld"]["epsilon"], "bound")
    assert (adam.json()["spread"], adam.json()["remarks"]) == (None, [])
    found = table([sgd, adam])
    assert found.header == ("optimizer", "learning-rate", "runs", "test accuracy", "epsilon spent")
    cells = {row[0]: row for row in found.rows}
    assert cells["dp-sgd"][2:4] == ["3", f"{data['mean']:.2%} +- {data['spread']:.2%}"]
    assert cells["dp-adam"][1] == "0.01"


def test_rows_are_best_first_and_what_has_no_room_is_named(runs: Path) -> None:
    groups = comparison.read([runs])
    found = table(groups)
    at = found.header.index("test accuracy")
    scores = [float(row[at].partition("%")[0]) for row in found.rows]
    assert scores == sorted(scores, reverse=True)
    whole = sum(max(map(len, cells)) + 3 for cells in zip(found.header, *found.rows, strict=True)) + 1
    assert table(groups, whole).header == found.header
    narrow = table(groups, whole - 1)
    [left] = set(found.header) - set(narrow.header)
    assert f"A setting that differs is not shown: {left}." in narrow.about[1]
    assert table(groups, 10).header[:2] == ("optimizer", "runs")


def test_a_narrow_table_keeps_the_settings_that_say_most(runs: Path) -> None:
    [adam, plain] = comparison.read([runs / "adam", runs / "open"])
    given = [("client", 5, "none"), ("client", 6, "central")]
    groups = [
        replace(group, settings={"unit": unit, "clients": clients, "placement": placement})
        for group, (unit, clients, placement) in zip((plain, adam), given, strict=True)
    ]
    assert table(groups).header[:3] == ("placement", "unit", "clients")
    assert table(groups, 10).header[0] == "placement"
    assert "epsilon is" not in table(groups).header
    assert "epsilon is a bound" in table(groups).about[0]


def test_what_cannot_be_resumed_is_not_sent_to_resume(runs: Path, tmp_path: Path) -> None:
    """Results and resume both name the command that shows the spent epsilon."""
    cut = unfinished(runs, tmp_path / "cut")
    whole = (cut / "config.toml").read_text()
    silos = {
        'level = "aggregation"': 'level = "client"',
        'unit = "client"': 'unit = "example"',
        'engine = "in-process"': 'engine = "ray"',  # the silos' states were in its actors' memory
    }
    text = whole
    for before, after in silos.items():
        assert before in text
        text = text.replace(before, after)
    capped = small(rounds=4, placement="local", sampler="fixed-size", max_participations=3).toml()
    for written, why in ((text, "its actors' memory only"), (capped, "(max-participations)")):
        (cut / "config.toml").write_text(written)
        for command, code in (("report", 0), ("resume", 2)):
            result = CliRunner().invoke(app, [command, str(cut)])
            assert result.exit_code == code, result.output
            assert f"`fedpriv account --ledger {cut / 'ledger.jsonl'} --delta " in result.output
            assert why in result.output
            assert "fedpriv re" not in result.output
    silos |= {"nodes-own-data = false": "nodes-own-data = true"}  # a node keeps the state of its silo
    for changes in (dict(list(silos.items())[2:]), silos):
        text = whole
        for before, after in changes.items():
            text = text.replace(before, after)
        (cut / "config.toml").write_text(text)
        for command, code in (("report", 0), ("resume", 2)):
            result = CliRunner().invoke(app, [command, str(cut)])
            assert result.exit_code == code
            assert "`fedpriv deploy resume` continues a deployment's run" in result.output
        with pytest.raises(ArgumentError, match=r"`fedpriv deploy resume` .* `fedpriv account --ledger"):
            load_result(cut)
        assert "<code>fedpriv deploy resume</code> continues" in page(found_in.read_inside(tmp_path), "a run")


def name_of(*changes: dict[str, object]) -> list[str]:
    return [
        ", ".join(f"{key}={value}" for key, value in settings.items())
        for settings in comparison.differences([small(**change) for change in changes])
    ]


def test_labels_leave_out_unused_settings() -> None:
    """Compare sets max-participations for local noise; silos of examples have sizes, virtual clients none."""
    local = {"placement": "local", "max_participations": 1}
    placements = name_of({}, local, {"placement": "none", "epsilon": 8.0, "accounting": "rdp"})
    assert placements == ["placement=central", "placement=local", "placement=none"]
    capped = name_of({}, local, {**local, "max_participations": 2})
    assert capped[0] == "placement=central"
    assert capped[2] == "placement=local, max-participations=2"
    silos = {"unit": "example", "examples_per_client": 60, "clients": 400}
    levels = name_of({}, silos, {**silos, "level": "client", "silo_steps": 3})
    assert levels == ["unit=client", "level=aggregation, unit=example", "level=client, unit=example"]
    steps = [{"optimizer": "dp-srm", "srm_gamma": gamma} for gamma in (0.1, 0.2)]
    methods = name_of(*({"learning_rate": 0.0, **change} for change in ({}, *steps)))
    assert methods[::2] == ["optimizer=dynamic-dp-sgd", "optimizer=dp-srm, srm-gamma=0.2"]


def test_a_finite_data_set_ignores_examples_per_client_of_1() -> None:
    partitioned = {"partition": "dirichlet", "clients": 100}
    finite, endless = name_of(
        {**partitioned, "dataset": "digits"}, {**partitioned, "examples_per_client": 20}
    )
    assert finite == "dataset=digits"
    assert endless == "dataset=infinite-digits"
    several = name_of(*({**partitioned, "examples_per_client": each} for each in (20, 30)))
    assert several == ["examples-per-client=20", "examples-per-client=30"]


def test_runs_that_differ_in_what_neither_uses_are_repetitions() -> None:
    open_runs = [{"placement": "none", "epsilon": epsilon} for epsilon in (1.0, 8.0)]
    assert name_of(*open_runs, {})[:2] == ["placement=none"] * 2


def test_a_folder_of_folders_is_all_of_them(runs: Path) -> None:
    groups = comparison.read([runs])
    assert sorted(len(group.runs) for group in groups) == [1, 1, 1, 3]
    found = table(groups)
    rows = {
        row[found.header.index("placement")] + row[found.header.index("accounting")]: row
        for row in found.rows
    }
    assert found.header[-4:] == ("epsilon spent", "delta", "against", "epsilon is")
    assert rows["none-"][-4:] == ["infinite", "", "nobody", ""]
    assert rows["centralgdp-clt"][-1] == "an ESTIMATE"
    assert found.about == ["All rows: ended: all rounds."]
    twice = comparison.read([runs, runs / "adam", runs / "sgd-1"])
    assert [len(group.runs) for group in twice] == [len(group.runs) for group in groups]
    assert comparison.read([runs / "adam"])[0].name == "optimizer=dp-adam"


def test_stopped_runs_are_not_averaged_and_cost_their_budget(runs: Path, tmp_path: Path) -> None:
    """If a run was stopped because of its results, the spent epsilon is not valid."""

    def ends(status: Status) -> None:
        if status.round == 2:
            raise KeyboardInterrupt

    config = small(rounds=4, optimizer="dp-sgd", seed=1)
    for name in ("cut-1", "cut-2"):
        folder = RunFolder.create(tmp_path / name)
        spent = execute(make_plan(config), make_worker(config.table()), folder, ends).report
    [view] = spent["privacy"]["views"]
    assert view["epsilon"]["pld"]["epsilon"] < 2.9
    groups = comparison.read([runs / "sgd-1", tmp_path / "cut-1", tmp_path / "cut-2"])
    assert [group.json()["ended"] for group in groups] == [["rounds"], ["interrupted"], ["interrupted"]]
    assert [len(group.runs) for group in groups] == [1, 1, 1]
    assert [group.json()["epsilon"] for group in groups[1:]] == [3.0, 3.0]
    assert groups[1].name == "optimizer=dp-sgd (interrupted)"
    told = "A stopped or resumed run has its whole budget: its end may depend on its results."
    assert told in comparison.footnotes(groups)
    assert told not in comparison.footnotes(groups[:1])


def changed(group: comparison.Group, name: object, **report: object) -> comparison.Group:
    """The group under another name, with its report's views against another adversary."""
    [run] = group.runs[:1]
    result = json.loads(json.dumps(run.report))
    for view in result["privacy"]["views"]:
        view |= report
    return replace(group, settings={"learning-rate": name}, runs=(replace(run, report=result),))


def test_remarks_name_their_runs(runs: Path) -> None:
    plain, adam, one = comparison.read([runs / "open", runs / "adam", runs / "sgd-1"])
    none = "not private: no noise is added"
    assert comparison.footnotes([plain]) == [none]
    assert comparison.footnotes([plain, plain]) == [f"All runs: {none}"]
    assert comparison.footnotes([adam]) == []
    assert comparison.footnotes([plain, adam, one]) == [
        f"{plain.name}: {none}",
        f"{one.name}: reproducible, not private (seed 1)",
    ]
    noiseless = [replace(plain, settings={"placement": "none", "optimizer": name}) for name in "ab"]
    noisy = replace(adam, settings={"placement": "central", "optimizer": "a"})
    assert comparison.footnotes([*noiseless, noisy]) == [f"placement=none: {none}"]
    third = replace(adam, settings={"placement": "none", "optimizer": "c"})
    both = "placement=none, optimizer=a; placement=none, optimizer=b"
    assert comparison.footnotes([*noiseless, third]) == [f"{both}: {none}"]
    [sgd] = comparison.read([runs / f"sgd-{seed}" for seed in (1, 2, 3)])
    assert comparison.footnotes([sgd])[0] == "reproducible, not private (seeds 1, 2, 3)"
    assert "standard deviation of a row's runs" in comparison.footnotes([sgd])[1]
    together = [replace(sgd, runs=sgd.runs[:1]), replace(sgd, runs=sgd.runs[1:])]
    assert comparison.footnotes(together)[0] == "All runs: reproducible, not private (seeds 1, 2, 3)"
    mixed = replace(sgd, runs=(*sgd.runs, *adam.runs))
    assert mixed.notes == ["reproducible, not private (seeds 1, 2, 3; 3 of 4 runs)"]


def test_runs_are_found_however_deep(runs: Path, tmp_path: Path) -> None:
    """Such as those of several comparisons."""
    for name in ("one", "two"):
        shutil.copytree(runs / "open", tmp_path / "all" / name / "none")
    (tmp_path / "all" / "linked").symlink_to(runs / "adam")
    found = comparison.read([tmp_path / "all"])
    assert sorted(len(group.runs) for group in found) == [1, 2]


def test_folders_without_a_run_are_refused_in_one_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("config.toml", "metrics.jsonl"):
        (broken / name).write_text((runs / "adam" / name).read_text())
    (broken / "report.json").write_text("{}")
    old = tmp_path / "old"
    old.mkdir()
    (old / "config.toml").write_text("rondes = 3\n")
    for folder, message in (
        (tmp_path / "nowhere", "be an existing folder"),
        (tmp_path / "empty", "hold runs (no config.toml is in it, nor in its folders)"),
        (broken, "hold an intact report.json"),
        (old, f"{old}'; it must hold a config.toml of this version (unknown key 'rondes'"),
    ):
        result = CliRunner().invoke(app, ["report", str(runs / "adam"), str(folder)])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert message in result.stderr
    with pytest.raises(ArgumentError, match="FOLDER is missing"):
        comparison.read([])


def unfinished(runs: Path, folder: Path) -> Path:
    """What a run that was cut short leaves."""
    folder.mkdir(parents=True)
    for name in ("config.toml", "metrics.jsonl"):
        (folder / name).write_text((runs / "adam" / name).read_text())
    return folder


def test_unfinished_runs_are_skipped_with_a_note(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "adam", tmp_path / "all" / "done")
    cut = unfinished(runs, tmp_path / "all" / "cut")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "all")])
    assert result.exit_code == 0, result.output
    hint = comparison.resume_hint(cut, comparison.read_one(runs / "adam").config)
    assert hint.startswith(
        f"`fedpriv resume {cut}` continues an interrupted run; its spend is in the ledger: "
    )
    note = f"NOTE: {cut} is only in the chart: it has no report.json; {hint}"
    assert result.stdout.splitlines()[0] == note
    document = CliRunner().invoke(app, ["report", str(tmp_path / "all"), "--json"])
    assert len(json.loads(document.stdout)) == 1
    assert document.stderr.splitlines() == [note]
    (cut / "report.json").write_text((runs / "adam" / "report.json").read_text())
    (cut / "metrics.jsonl").write_text("")
    errors: list[comparison.UnfinishedError] = []
    comparison.read([tmp_path / "all", tmp_path / "all"], errors.append)
    assert [(error.folder, error.why) for error in errors] == [(cut, f"its metrics.jsonl is empty; {hint}")]
    assert len(comparison.read([tmp_path / "all", cut])) == 1  # also where it is named


def test_a_run_that_was_killed_has_a_page_with_what_it_has_made(runs: Path, tmp_path: Path) -> None:
    """Also where it was killed before its first evaluation."""
    cut, begun = unfinished(runs, tmp_path / "cut"), unfinished(runs, tmp_path / "begun")
    (begun / "metrics.jsonl").unlink()
    for folder, last in ((cut, 4), (begun, 0)):
        result = CliRunner().invoke(app, ["report", str(folder)])
        assert result.exit_code == 0, result.output
        assert result.output.splitlines()[0].startswith(f"NOTE: {folder} is only in the chart: it has no ")
        assert "1 run without a report; 1 setting tried." in result.output
        assert f"{folder / 'report.html'} has the chart, and all settings" in result.output
        html = (folder / "report.html").read_text()
        assert f"Its last evaluation is of round {last}. If it was cut off: <code>fedpriv resume" in html
    assert CliRunner().invoke(app, ["report", str(cut), "--json"]).stdout == "[]\n"


def test_an_unreadable_folder_is_reported(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs / "adam", tmp_path / "done")
    shut, scan = tmp_path / "shut", os.scandir
    shut.mkdir()

    def guarded(folder: str) -> Any:
        if Path(folder) == shut:
            raise PermissionError(errno.EACCES, "Permission denied", str(shut))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (2, f"fedpriv: {shut}: Permission denied\n")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("here.pdf", "--out is '{1}'; it must end in .html (--pictures FOLDER writes PNG and SVG files)"),
        (".", "--out is '{1}'; it must be an HTML file, not a folder"),
        (
            "afile/x.html",
            "--out is '{1}'; it must be a file in a folder to write to ({0}/afile is not a folder)",
        ),
    ],
)
def test_an_unwritable_plot_is_refused_before_runs_are_read(out: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    where = tmp_path / out
    result = CliRunner().invoke(app, ["report", "nowhere", "--out", str(where)])
    assert (result.exit_code, result.stderr) == (2, f"fedpriv: {message.format(tmp_path, where)}\n")


@pytest.mark.usefixtures("rendered_pictures")
def test_the_command_prints_a_table_or_json_and_draws(runs: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(runs), "--out", str(tmp_path / "all.html")])
    assert result.exit_code == 0
    lines = [line.removeprefix("NOTE: ") for line in result.stdout.splitlines() if line.startswith("NOTE: ")]
    assert len(lines) == 3
    assert sum(line.endswith(": reproducible, not private (seeds 1, 2, 3)") for line in lines) == 1
    [noiseless] = [line for line in lines if line.endswith(": not private: no noise is added")]
    assert "placement=none" in noiseless
    assert lines[2].startswith("The number after +- is the sample standard deviation")
    assert (tmp_path / "all.html").read_text().startswith("<!DOCTYPE html>")
    document = json.loads(CliRunner().invoke(app, ["report", str(runs), "--json"]).stdout)
    assert len(document) == 4
    assert {len(row["folders"]) for row in document} == {1, 3}
