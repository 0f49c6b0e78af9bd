"""report.html: one file without network, in which everything from files is text."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedpriv
from fedpriv.cli.app import app
from fedpriv.config.reading import read_assignment
from fedpriv.config.schema import Config
from fedpriv.report.page import data, folders, markup
from fedpriv.report.page.command import command
from fedpriv.report.page.page import page

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&$x$"
SMALL = {"model": "logistic", "clients": 300, "sampling_rate": 0.1, "rounds": 2, "engine": "in-process"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, and one that is cut off after its first evaluation."""
    folder = tmp_path_factory.mktemp("runs")
    fedpriv.simulate(SMALL, evaluate_every=1, seed=1, folder=folder / "ended")
    shutil.copytree(folder / "ended", folder / "cut")
    (folder / "cut" / "report.json").unlink()
    records = (folder / "cut" / "metrics.jsonl").read_text().splitlines()
    (folder / "cut" / "metrics.jsonl").write_text(records[0] + "\n" + records[1][:20])  # half a line
    return folder


class Tags(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_one_file_with_each_runs_claims(runs: Path, rendered_pictures: None) -> None:
    html = page(folders.read([runs]), "two runs")
    tags = Tags(html)
    for tag, attributes in tags.found:
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, name, value)
    assert "@import" not in html
    assert "default-src 'none'" in html
    assert "What is not covered" in tags.text
    assert "reproducible, not private (seed 1)" in tags.text
    assert "fedpriv simulate --set model=logistic" in tags.text
    assert "sampling-rate = 0.1" in tags.text
    assert "1 setting tried" in tags.text
    assert "is only in the chart" in tags.text
    assert [tag for tag, _ in tags.found].count("figure") >= 3
    [going, ended] = data.runs(folders.read([runs]))
    assert (going["ended"], [point[0] for point in going["points"]]) == (None, [1])  # no half line
    assert (ended["ended"], [point[0] for point in ended["points"]]) == ("all rounds", [0, 1, 2])


def test_what_comes_from_files_is_no_markup(runs: Path, tmp_path: Path, rendered_pictures: None) -> None:
    """Names and notes in files, and the names of folders, with markup in them."""
    folder = tmp_path / "runs" / "<b>&"
    shutil.copytree(runs / "ended", folder)
    shutil.copytree(runs / "ended", tmp_path / "runs" / "other")
    config = (folder / "config.toml").read_text()
    config = re.sub(r"(?m)^dataset = .*$", lambda _: f"dataset = {json.dumps('a:' + EVIL)}", config)
    (folder / "config.toml").write_text(config)
    report = json.loads((folder / "report.json").read_text())
    for key in ("remark", "data set", "model", "optimizer"):
        report[key] = EVIL
    report["privacy"] |= {"unit": EVIL, "trust": EVIL, "sampler": EVIL, "not covered": [EVIL]}
    report["privacy"]["views"][0]["against"] = EVIL
    report["versions"] = {EVIL: EVIL}
    (folder / "report.json").write_text(json.dumps(report))
    found = folders.read([tmp_path / "runs"])
    tags = Tags(page(found, EVIL))
    assert [tag for tag, _ in tags.found].count("script") == 2  # the data, and the page's own
    names = {tag for tag, _ in tags.found}
    assert not names & {"img", "b", "iframe", "object", "embed", "link", "base"}
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    [content] = [a for t, a in tags.found if t == "script" and a.get("type") == "application/json"]
    assert content["id"] == "data"
    assert "alert(2)" in tags.text  # it is there, as text


def test_the_script_that_may_run_is_the_pages_own(runs: Path, rendered_pictures: None) -> None:
    import base64
    import hashlib

    html = page(folders.read([runs / "ended"]), "one run")
    script = html.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    assert "innerHTML" not in script


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 0.5, "clients": 1000},
        {"placement": "none", "clip-norm": float("inf"), "seed": 3},
        {"placement": "local", "sampler": "fixed-size", "optimizer": "dp-adam", "learning-rate": 0.02},
        {"level": "client", "unit": "example", "examples-per-client": 50, "silo-steps": 2, "clients": 10},
        {"dataset": "my module:load"},
    ],
)
def test_the_command_makes_the_same_configuration(settings: dict[str, object]) -> None:
    config = Config.parse(settings).resolved()
    words = shlex.split(command(config))
    assert words[:2] == ["fedpriv", "simulate"]
    again = Config.parse(dict(read_assignment(word) for word in words[3::2])).resolved()
    idle = set(config.without_effect())
    assert {k: v for k, v in again.table().items() if k not in idle} == {
        k: v for k, v in config.table().items() if k not in idle
    }


def test_objects_in_memory_have_no_command() -> None:
    assert command(Config.parse({"model": "in-memory:Net"})) == ""


def test_links_out_of_the_folder_are_left_out(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(runs / "ended", root / "sound")
    (root / "linked").symlink_to(runs / "ended")
    shutil.copytree(runs / "ended", root / "file")
    (root / "file" / "metrics.jsonl").unlink()
    (root / "file" / "metrics.jsonl").symlink_to(runs / "ended" / "metrics.jsonl")
    (root / "within").symlink_to(root / "sound")
    shutil.copytree(runs / "ended", root / "damaged")
    (root / "damaged" / "report.json").write_text("{")
    found = folders.read_inside(root)
    assert {run.folder.name for run in found.runs} <= {"sound", "within"}
    assert len(found.notes) == 3
    assert sum("links that lead out" in note for note in found.notes) == 2


def test_markdown_of_reports_is_html() -> None:
    text = "# A\n\n| a | b |\n|---|---|\n| `x` | **y** |\n\n- one\n- two\n"
    html = markup.markdown(text)
    assert "<h3>A</h3>" in html
    assert "<td><code>x</code></td><td><strong>y</strong></td>" in html
    assert "<ul><li>one</li><li>two</li></ul>" in html


def test_the_command_writes_page_and_pictures(runs: Path, tmp_path: Path, rendered_pictures: None) -> None:
    where = ["--out", str(tmp_path / "r.html"), "--pictures", str(tmp_path / "p")]
    result = CliRunner().invoke(app, ["report", str(runs), *where])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    names = {path.name for path in (tmp_path / "p").iterdir()}
    assert {
        "score-by-epsilon.png",
        "score-by-epsilon.svg",
        "score-by-round.svg",
        "noise-to-signal.png",
    } <= names
