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
from matplotlib.figure import Figure
from typer.testing import CliRunner

from fedpriv._internal.validation import ArgumentError
from fedpriv.cli import app
from fedpriv.config.plan import make_plan
from fedpriv.node.factory import make_worker
from fedpriv.report import comparison, comparison_plots
from fedpriv.report.comparison_table import table
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
    assert adam.name == "optimizer=dp-adam, learning-rate=auto"
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
    assert cells["dp-adam"][1] == "auto"


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
    text = (cut / "config.toml").read_text().replace("nodes-own-data = false", "nodes-own-data = true")
    (cut / "config.toml").write_text(text.replace('engine = "in-process"', 'engine = "ray"'))
    for command in ("results", "resume"):
        result = CliRunner().invoke(app, [command, str(cut)])
        assert result.exit_code == 2
        assert "a deployment's run cannot be resumed" in result.stderr
        assert f"`fedpriv account --ledger {cut / 'ledger.jsonl'} --delta " in result.stderr
        assert "fedpriv re" not in result.stderr


def name_of(*changes: dict[str, object]) -> list[str]:
    return [
        ", ".join(f"{key}={value}" for key, value in settings.items())
        for settings in comparison._differences([small(**change) for change in changes])
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


@pytest.fixture
def drawn(rendered_pictures: None, monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved, in order."""
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (save(self, *a, **k), figures.append(self)))
    return figures


def test_the_picture_has_means_and_a_side_for_budgets(runs: Path, drawn: list[Figure]) -> None:
    groups = comparison.read([runs])
    comparison_plots.picture(groups)
    by_round, by_budget = drawn[0].axes
    assert len(by_round.lines) == 4
    [sgd] = [group for group in groups if len(group.runs) == 3]
    at = groups.index(sgd)
    assert by_round.lines[at].get_xdata()[0] == 0  # the score before round 1
    data = sgd.json()
    assert by_round.lines[at].get_ydata()[-1] == pytest.approx(100 * data["mean"])
    [band] = by_round.collections
    ends = band.get_paths()[0].vertices
    ends = ends[ends[:, 0] == ends[:, 0].max()][:, 1]
    assert (max(ends) - min(ends)) / 2 == pytest.approx(100 * data["spread"])  # as in the table
    assert "+- standard deviation of runs" in by_round.get_ylabel()
    assert sum("ESTIMATE" in line.get_label() for line in by_round.lines) == 1
    points = [part.lines[0] for part in by_budget.containers]
    assert sorted(point.get_xdata()[0] for point in points) == [1, 3, 3]  # budgets, not what was spent so far
    [mean] = [p.get_ydata()[0] for p in points if p.get_color() == f"C{at}"]
    assert mean == pytest.approx(100 * data["mean"])
    [level] = [line for line in by_budget.lines if line.get_linestyle() == ":"]
    [plain] = [group for group in groups if group.runs[0].config.placement == "none"]
    assert list(level.get_ydata()) == pytest.approx([100 * plain.json()["mean"]] * 2)  # it has no epsilon
    assert "dotted: the last score without noise" in by_budget.get_xlabel()
    assert (
        "epsilon of the whole budget,\nagainst anyone who sees the released models" in by_budget.get_xlabel()
    )
    assert all("spent" not in axes.get_xlabel() for axes in (by_round, by_budget))
    comparison_plots.picture([plain])
    assert len(drawn[1].axes) == 1
    assert drawn[1].get_suptitle() == "not private: no noise is added"


def changed(group: comparison.Group, name: object, **report: object) -> comparison.Group:
    """The group under another name, with its report's views against another adversary."""
    [run] = group.runs[:1]
    result = json.loads(json.dumps(run.report))
    for view in result["privacy"]["views"]:
        view |= report
    return replace(group, settings={"learning-rate": name}, runs=(replace(run, report=result),))


def labels_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_the_plot_names_adversaries_and_runs_that_are_not_private(runs: Path, drawn: list[Figure]) -> None:
    plain, adam = comparison.read([runs / "open", runs / "adam"])
    local = changed(adam, "local", against="the server, for the unit that lost most")
    comparison_plots.picture([plain, adam, local])
    labels = labels_of(drawn[0])
    assert labels[0].endswith(" (not private: no noise is added)")
    assert labels[1].endswith(" (against anyone who sees the released models)")
    assert labels[2] == "learning-rate=local (against the server)"
    [axes] = drawn[0].axes
    assert axes.get_xlabel() == "round (each private run's whole budget: epsilon 3)"
    comparison_plots.picture([plain, of_budget(adam, 1.0), local])
    assert "whole budget,\nagainst the adversary named in the legend" in drawn[1].axes[1].get_xlabel()
    assert not drawn[0].get_suptitle()  # the others are private


@pytest.mark.parametrize(("count", "many"), [(20, False), (21, True), (56, True)])
def test_a_picture_of_many_stays_readable(count: int, many: bool, runs: Path, drawn: list[Figure]) -> None:
    """What matplotlib cannot lay out, it warns of, and warnings are errors here."""
    adam, plain = comparison.read([runs / "adam", runs / "open"])
    groups = [changed(adam, f"{'a long name, ' * 9}{number}") for number in range(count - 1)]
    comparison_plots.picture([*groups, changed(plain, "open")])
    [figure] = drawn
    axes = figure.axes[0]
    inside = axes.get_window_extent()
    assert inside.width > 300
    assert inside.height > 15 * (count if many else 20)
    [legend] = figure.legends
    assert not inside.overlaps(legend.get_window_extent())
    assert figure.bbox.width >= legend.get_window_extent().width
    if many:
        assert labels_of(figure) == ["without noise", "against anyone who sees the released models"]
        ends = [float(part.lines[0].get_xdata()[0]) for part in axes.containers]
        names = [text.get_text() for text in axes.get_yticklabels()]
        assert len(names) == count
        scores = [100 * group.json()["mean"] for group in (plain, adam)]
        assert ends == pytest.approx(scores)
        first = "open" if scores[0] > scores[1] else "a long name"
        assert names[0].startswith(f"learning-rate={first}")
        assert sum("epsilon 3" in name or "epsilon 2.9" in name for name in names) == count - 1
        assert sum("not private" in name for name in names) == 1
    else:
        styles = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
        assert len(styles) == count


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


def test_folders_without_a_finished_run_are_refused_in_one_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "config.toml").write_text((runs / "adam" / "config.toml").read_text())
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
        (cut, "hold a run that has ended (it has no metrics.jsonl; `fedpriv resume"),
        (broken, "hold an intact report.json"),
        (old, f"{old}'; it must hold a config.toml of this version (unknown key 'rondes'"),
    ):
        result = CliRunner().invoke(app, ["results", str(runs / "adam"), str(folder)])
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
    result = CliRunner().invoke(app, ["results", str(tmp_path / "all")])
    assert result.exit_code == 0, result.output
    hint = f"`fedpriv resume {cut}` continues an interrupted run"
    note = f"NOTE: {cut} is left out: it has no report.json; {hint}"
    assert result.stdout.splitlines()[0] == note
    document = CliRunner().invoke(app, ["results", str(tmp_path / "all"), "--json"])
    assert len(json.loads(document.stdout)) == 1
    assert document.stderr.splitlines() == [note]
    (cut / "report.json").write_text((runs / "adam" / "report.json").read_text())
    (cut / "metrics.jsonl").write_text("")
    message: list[str] = []
    comparison.read([tmp_path / "all", tmp_path / "all"], message.append)
    assert message == [f"{cut} is left out: its metrics.jsonl is empty; {hint}"]
    for folders in ([cut], [tmp_path / "all", cut]):
        with pytest.raises(ArgumentError, match="must hold a run that was evaluated"):
            comparison.read(folders)
    unfinished(runs, tmp_path / "none" / "cut")
    with pytest.raises(ArgumentError, match=r"none'; it must hold runs that have ended \(`fedpriv resume"):
        comparison.read([tmp_path / "none"])


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
    result = CliRunner().invoke(app, ["results", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (2, f"fedpriv: {shut}: Permission denied\n")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("here.pdf", "--out is '{1}'; it must end in .png"),
        (".", "--out is '{1}'; it must be a PNG file, not a folder"),
        (
            "afile/x.png",
            "--out is '{1}'; it must be a file in a folder to write to ({0}/afile is not a folder)",
        ),
    ],
)
def test_an_unwritable_plot_is_refused_before_runs_are_read(out: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "afile").touch()
    where = tmp_path / out
    result = CliRunner().invoke(app, ["results", "nowhere", "--out", str(where)])
    assert (result.exit_code, result.stderr) == (2, f"fedpriv: {message.format(tmp_path, where)}\n")


def of_budget(group: comparison.Group, epsilon: float) -> comparison.Group:
    """The group as if this had been its budget."""
    [run] = group.runs
    report = json.loads(json.dumps(run.report))
    report["privacy"]["budget"]["epsilon"] = epsilon
    return replace(group, settings={"epsilon": epsilon}, runs=(replace(run, report=report),))


@pytest.mark.parametrize(("largest", "scale"), [(4.9, "linear"), (5.1, "log")])
def test_budgets_far_apart_are_on_a_logarithmic_axis_and_scores_on_a_whole_one(
    largest: float, scale: str, runs: Path, drawn: list[Figure]
) -> None:
    [adam] = comparison.read([runs / "adam"])
    comparison_plots.picture([of_budget(adam, 0.1), of_budget(adam, largest)])
    by_round, by_budget = drawn[0].axes
    assert (by_budget.get_xscale(), by_round.get_xscale()) == (scale, "linear")
    assert by_round.get_ylim() == by_budget.get_ylim() == (0, 100)
    assert list(by_budget.lines[0].get_xdata()) == [0.1, largest]  # one line: they differ in epsilon alone
    comparison_plots.picture([of_budget(adam, 0.1), of_budget(adam, 0.1)])
    assert len(drawn[1].axes) == 1  # one budget: nothing to compare


def test_a_picture_of_many_has_all_of_them_however_many_adversaries(runs: Path, drawn: list[Figure]) -> None:
    [adam] = comparison.read([runs / "adam"])
    comparison_plots.picture([changed(adam, number, against=f"party {number}") for number in range(23)])
    [axes] = drawn[0].axes
    assert sum(len(part.lines[0].get_xdata()) for part in axes.containers) == 23
    styles = {(part.lines[0].get_color(), part.lines[0].get_marker()) for part in axes.containers}
    assert len(styles) == 23


@pytest.mark.usefixtures("rendered_pictures")
def test_the_command_prints_a_table_or_json_and_draws(runs: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["results", str(runs), "--out", str(tmp_path / "all.png")])
    assert result.exit_code == 0
    lines = [line.removeprefix("NOTE: ") for line in result.stdout.splitlines() if line.startswith("NOTE: ")]
    assert len(lines) == 3
    assert sum(line.endswith(": reproducible, not private (seeds 1, 2, 3)") for line in lines) == 1
    [noiseless] = [line for line in lines if line.endswith(": not private: no noise is added")]
    assert "placement=none" in noiseless
    assert lines[2].startswith("The number after +- is the sample standard deviation")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads(CliRunner().invoke(app, ["results", str(runs), "--json"]).stdout)
    assert len(document) == 4
    assert {len(row["folders"]) for row in document} == {1, 3}
