"""The page as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from fedpriv._internal import plotting
from fedpriv._internal.version import __version__
from fedpriv.report import markdown, overview, pictures, search_record
from fedpriv.report.comparison import Group, Run, resume_hint
from fedpriv.report.comparison_table import table as compared
from fedpriv.report.page import data
from fedpriv.report.page.command import command
from fedpriv.report.page.folders import Found, Unfinished
from fedpriv.report.page.markup import element, table, wrapped
from fedpriv.report.page.markup import markdown as as_html
from fedpriv.report.sweep_results import of_groups
from fedpriv.tasks.metrics import counted

_OBJECTS = "No command repeats this run: it was given objects in memory, or its nodes own their data."


def page(found: Found, title: str, live: bool = False) -> str:
    """The page.

    Args:
        found: the runs.
        title: what the page is about, in words.
        live: whether it is served, and follows runs that go on.
    """
    script, style = _asset("report.js"), _asset("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    content = json.dumps(data.runs(found)).replace("<", "\\u003c")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        + f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        + '<meta name="referrer" content="no-referrer">'
        + element("title", title)
        + f"<style>{style}</style>"
    )
    body = "".join(
        [
            element("h1", title),
            *_about(found),
            *_chart(found, live),
            *_results(found),
            *_searches(found),
            *_runs(found),
        ]
    )
    foot = element("footer", f"Made by fedpriv {__version__}. This file needs no network.")
    block = f'<script type="application/json" id="data">{content}</script><script>{script}</script>'
    whole = wrapped("head", head) + wrapped("body", wrapped("main", body) + foot + block)
    return f"<!DOCTYPE html>{wrapped('html', whole, lang='en')}\n"


@cache
def _asset(name: str) -> str:
    return (files("fedpriv.report.page") / "assets" / name).read_text()


def about(found: Found) -> str:
    """How many runs there are, and how many settings were tried.

    >>> about(Found((), (), ()))
    'no runs; 0 settings tried'
    """
    ended, open_ = len(found.runs), len(found.unfinished)
    parts = [counted(ended, "run")] if ended else []
    parts += [f"{counted(open_, 'run')} without a report"] if open_ else []
    tried = f"{counted(found.tried, 'setting')} tried{search_record.summed_up(found.searches)}"
    return f"{', '.join(parts) or 'no runs'}; {tried}"


def _about(found: Found) -> list[str]:
    text = f"{about(found)[:1].upper()}{about(found)[1:]}. "
    if found.tried > 1:
        text += (
            "The best of many is optimistic: confirm it with new seeds. Settings that were tried in other "
            "folders are not counted. Runs on the same data add up: `fedpriv account --ledger A --ledger B` "
            "gives the total."
        )
    return [as_html(text), *(element("p", note, klass="note") for note in found.notes)]


def _chart(found: Found, live: bool) -> list[str]:
    """The place of the chart that the script draws."""
    if not (found.runs or found.unfinished or live):
        return []
    lead = "Choose runs to lay them over each other; a point shows its settings."
    state = wrapped("p", "", id="state", role="status") if live else ""
    return [
        element("h2", "Runs by round"),
        element("p", lead),
        state,
        wrapped("div", "", id="chart", data_live="yes" if live else "no"),
        element("noscript", "The chart needs a browser that runs the page's own script."),
    ]


def _results(found: Found) -> list[str]:
    """A table and the pictures for each measure by which runs are scored."""
    by_measure: dict[str, list[Group]] = {}
    for group in found.groups:
        by_measure.setdefault(group.measure.words, []).append(group)
    parts = []
    for words, groups in by_measure.items():
        parts.append(element("h2", "Results" if len(by_measure) == 1 else f"Results by {words}"))
        content = compared(groups)
        parts.append(element("p", "Click on a column's name to sort by it."))
        parts.append(table(content.header, content.rows, klass="sortable"))
        parts += [element("p", line) for line in (*content.about, *content.notes)]
        parts += _pictures(groups, about(found))
    return parts


def _searches(found: Found) -> list[str]:
    """What tuned sweeps chose for each method, among how many candidates, and what that would cost."""
    parts = [element("h2", "Settings that were chosen")] if found.searches else []
    for search in found.searches:
        parts.append(
            wrapped("p", element("code", str(search.folder)) + element("span", f": {search.about}."))
        )
        parts.append(table(search.header, search.rows, klass="sortable"))
    return [*parts, *([element("p", search_record.ADDS_UP)] if found.searches else [])]


def _pictures(groups: Sequence[Group], said: str) -> list[str]:
    parts = []
    for _, title, figure in pictures.drawn(of_groups(groups), said):
        drawing = re.sub(
            r"<!--.*?-->|<metadata>.*?</metadata>", "", plotting.svg(figure).decode(), flags=re.S
        )
        drawing = drawing[drawing.index("<svg") :].replace("<svg", '<svg role="img" aria-hidden="true"', 1)
        parts.append(wrapped("figure", element("figcaption", title) + drawing))
    return parts


def _runs(found: Found) -> list[str]:
    """What each run claims, how it is repeated, and all of its settings."""
    parts = [element("h2", "Each run")] if found.runs or found.unfinished else []
    parts += [_details(str(run.folder), _open(run), run.config) for run in found.unfinished]
    return parts + [_details(str(run.folder), _statement(run), run.config, run.report) for run in found.runs]


def _open(run: Unfinished) -> str:
    last = run.metrics[-1]["round"] if run.metrics else 0
    text = f"This run has no report: it goes on, or was cut off. Its last evaluation is of round {last}."
    return as_html(f"{text} If it was cut off: {resume_hint(run.folder, run.config)}.")


def _statement(run: Run) -> str:
    """The text of report.md; what is damaged is said."""
    try:
        return as_html(markdown.markdown(run.report), level=3)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        return element("p", "report.json is damaged, and cannot be shown.", klass="note")


def _details(folder: str, statement: str, config: Any, report: Any = None) -> str:
    said = "has no report" if report is None else _sentence(report)
    summary = wrapped("summary", element("code", folder) + element("span", f" {said}"))
    again = command(config)
    content = [
        statement,
        element("h3", "Command"),
        element("pre", again) if again else element("p", _OBJECTS),
        element("h3", "Configuration"),
        element("pre", config.toml()),
    ]
    return wrapped("details", summary + "".join(content))


def _sentence(report: Any) -> str:
    try:
        return overview.sentence(report)
    except (KeyError, TypeError, ValueError):
        return "has a damaged report"
