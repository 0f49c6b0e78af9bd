"""The same federation under no, central, local and distributed noise, at the same budget.

Each placement's budget is read against the adversary it defends against: central and distributed,
who sees the released models; local, the server. So equal epsilons do not mean equal promises, and the
table shows both views. Local noise protects each message, so a client that never stops giving data
would need noise for every round; where ``max-participations`` is 0, the comparison lets clients give
data to ceil(sampling-rate * rounds) releases, their expected number, and send noise only after that.
Where units are examples of silos, the client level can be compared, too (:mod:`fedpriv.node.silo`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from typing import TYPE_CHECKING, Any

from fedpriv._internal import plotting, run_files
from fedpriv._internal.settings import own_settings
from fedpriv.accounting import Event, UnsupportedEvent, epsilon
from fedpriv.accounting.events import Relation
from fedpriv.accounting.methods.relations import under_one_relation
from fedpriv.accounting.record import parse
from fedpriv.accounting.totals import neighbours
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.stop_reason import divergence
from fedpriv.mechanism.placement import PLACEMENTS, Central, Distributed, DistributedSettings, LocalSettings
from fedpriv.mechanism.placement.distributed import SECURE
from fedpriv.mechanism.sampling import SAMPLERS
from fedpriv.report.adversaries import by_method, observer_events, server_and_models
from fedpriv.report.notices import NOT_PRIVATE, remark, unprotected
from fedpriv.report.pictures.methods import accuracy_of_guessing
from fedpriv.report.pictures.points import interval
from fedpriv.report.summary import round_0
from fedpriv.runs.result import Result
from fedpriv.runs.run_dir import RunFolder
from fedpriv.tasks.metrics import Metric, counted, scores, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SERVER, MODELS = "epsilon against the server", "epsilon against who sees the models"  # of a row
SILOS = "client"  # the client level: silos add all the noise to steps of their own
COMPARED = (*PLACEMENTS, SILOS, SECURE)
_STYLES = dict(zip(COMPARED, cycle(plotting.STYLES), strict=False))
AGAINST = {
    **{name: placement.against for name, placement in PLACEMENTS.items()},
    SILOS: "all but its own silo",
    SECURE: "the server, and who sees the models",
}


@dataclass(frozen=True)
class Row:
    """One placement's outcome: a run, or repetitions with several seeds."""

    placement: str
    plan: Plan
    results: tuple[Result, ...]

    @property
    def result(self) -> Result:
        """The first run; of several, the first one that somebody stopped, if there is one."""
        cut = [result for result in self.results if not result.stopped.complete]
        return (*cut, *self.results)[0]

    @property
    def spread(self) -> dict[str, tuple[float, float]]:
        """(mean, half the width of its 95 % interval) of each score of several runs that none diverged in."""
        finals = [scores(result.metrics[-1]) if result.metrics else {} for result in self.results]
        values = {key: [final.get(key) for final in finals] for key in finals[0]}
        known = {key: [v for v in column if v is not None] for key, column in values.items()}
        return {key: interval(column) for key, column in known.items() if len(column) == len(finals)}

    def json(self) -> dict[str, Any]:
        """The row as report data."""
        server, models = server_and_models(self._views, self.plan.config.accounting)
        final = scores(self.result.metrics[-1] if self.result.metrics else {})
        several: dict[str, Any] = {}
        if len(self.results) > 1:
            final = {key: self.spread[key][0] if key in self.spread else None for key in final}
            halves = {key: half for key, (_, half) in self.spread.items()}
            several = {"runs": len(self.results), "95 % interval, half": halves}
        return {
            "placement": self.placement,
            "defends against": AGAINST[self.placement],
            "neighbours": self.result.report["privacy"]["relation"] if self.plan.budget else None,
            **final,
            **several,
            SERVER: server,
            MODELS: models,
            "epsilon is": self._kind(),
            "stopped": self.result.stopped,
            "remark": remarks(self) or None,
        }

    @property
    def _views(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.result.report["privacy"]["views"]
        return found

    def _kind(self) -> str | None:
        """A bound or an estimate; an estimate where any of the row's is."""
        kinds = {by_method(view, self.plan.config.accounting)["kind"] for view in self._views}
        return "estimate" if "estimate" in kinds else next(iter(kinds), None)


def plans(config: Config, placements: Sequence[str] = tuple(PLACEMENTS)) -> list[Plan]:
    """The plans to compare, of placements at the aggregation level, of distributed noise with secure
    aggregation, and of the client level (``client``, with the configuration's ``silo-steps``); all are
    checked before any runs."""
    return [make_plan(_placed(config, placement)) for placement in placements]


def _placed(config: Config, placement: str) -> Config:
    kind = PLACEMENTS[{SILOS: Central.name, SECURE: Distributed.name}.get(placement, placement)]
    others = [other for other in own_settings(PLACEMENTS) if other is not kind.settings]
    changes: dict[str, Any] = {key: value for other in others for key, value in other()}
    changes["min_replies"] = 0
    if config.ledger_anchor:  # an anchor is that of one ledger
        changes["ledger_anchor"] = f"{config.ledger_anchor}.{placement}"
    drawn = placement == Central.name and SAMPLERS[config.sampler].sampling.fixed_size
    at_parties = placement != SILOS and kind.at_parties
    if not drawn and not at_parties:  # there nothing depends on it
        changes["colluding_parties"] = Config.parse({}).colluding_parties
    if placement == SILOS:
        return config.changed(level="client", placement=Central.name, **changes)
    changes |= {"level": "aggregation", "silo_steps": 1, "placement": kind.name}
    if kind.settings is DistributedSettings:
        changes["secure_aggregation"] = placement == SECURE
    if kind.settings is LocalSettings:
        expected = math.ceil(config.sampling_rate * config.rounds)
        cap = config.part(LocalSettings).max_participations
        changes["max_participations"] = cap or min(expected, config.rounds)
    if kind.server_view:
        changes["relation"] = "auto" if config.relation == Relation.ADD_REMOVE.value else config.relation
    elif at_parties:
        changes["min_replies"] = config.min_replies
    return config.changed(**changes)


def write(folder: RunFolder, rows: Sequence[Row], chosen: Sequence[Plan]) -> None:
    """The table and the picture of a comparison; of one without any result, nothing."""
    if rows:
        folder.write("compare.json", json.dumps([row.json() for row in rows], indent=2) + "\n")
        folder.write("compare.md", markdown(rows, left_out(chosen, rows)))
        figure = draw(rows)
        folder.write("compare.png", plotting.png(figure))
        folder.write("compare.svg", plotting.svg(figure))


def left_out(chosen: Sequence[Plan], rows: Sequence[Row]) -> str:
    """Which runs ended before their end, and which were not begun, in a line; nothing where all are whole."""
    cut = [
        f"{result.stopped.short}: {row.placement}{_of_seed(row, result)} was last scored at round "
        f"{result.metrics[-1]['round'] if result.metrics else 0} of {row.plan.config.rounds}"
        for row in rows
        for result in row.results
        if not result.stopped.complete
    ]
    ran = {row.placement for row in rows}
    missing = [name(plan) for plan in chosen if name(plan) not in ran]
    most = max((len(row.results) for row in rows), default=1)
    few = [
        f"{row.placement} has {len(row.results)} of {most} runs" for row in rows if len(row.results) < most
    ]
    cut += few
    return "; ".join([*cut, *([f"not run: {', '.join(missing)}"] if missing else [])])


def _of_seed(row: Row, result: Result) -> str:
    return f" (seed {result.config.seed})" if len(row.results) > 1 else ""


def name(plan: Plan) -> str:
    """What a comparison calls the run of this plan."""
    if plan.by_silo:
        return SILOS
    return SECURE if plan.config.aggregates_securely else plan.config.placement


def markdown(rows: Sequence[Row], left: str = "") -> str:
    """The comparison as a Markdown table; ``left`` says what is not in it."""
    lines = ["# Central against local noise", ""]
    lines += [f"> **{left}**\n"] if left else []
    lines += [f"> {row.placement}: **{note}**\n" for row in rows for note in warnings(row)]
    head = header(rows)
    lines += [" | ".join(["", *head, ""]).strip(), "|" + "---|" * len(head)]
    lines += [" | ".join(["", *cells(row), ""]).strip() for row in rows]
    for note in notes(rows):
        lines += ["", note]
    return "\n".join([*lines, ""])


def warnings(row: Row) -> list[str]:
    """Why a row's runs are not private, that its model diverged or learned nothing, and the like."""
    found = (remarks(row), divergence(row.result.stopped, row.result.metrics), *row.result.notes)
    return [text for text in found if text]


def remarks(row: Row) -> str:
    """Why a row's runs are not private; empty where they are. It names the seeds of several."""
    if len(row.results) == 1:
        return remark(row.result.config) or ""
    seeds = ", ".join(str(result.config.seed) for result in row.results)
    return "; ".join([*unprotected(row.plan.config), f"{NOT_PRIVATE} (seeds {seeds})"])


def task(config: Config) -> str:
    """The data set, the clients, the model and the optimizer of all rows."""
    return f"{config.dataset}, {counted(config.clients, 'client')}, {config.model}, {config.optimizer}"


def notes(rows: Sequence[Row]) -> list[str]:
    """What holds for all rows, and how long clients give data under local noise, in sentences."""
    budget = next((row.plan.budget for row in rows if row.plan.budget), None)
    config = rows[0].plan.config
    texts = [f"All rows: {task(config)}, {counted(config.rounds, 'round')}."]
    if budget:
        unit = f"the privacy unit is one {config.unit}"
        texts.append(f"Budget of each: epsilon {budget.epsilon:g} at delta {budget.delta:.3g}; {unit}.")
    total = sum(len(row.results) for row in rows)
    texts.append(f"{counted(total, 'run')}; {counted(len(rows), 'setting')} tried.")
    if any(len(row.results) > 1 for row in rows):
        counts = sorted({len(row.results) for row in rows})
        runs = " to ".join(dict.fromkeys(map(str, (counts[0], counts[-1]))))
        texts.append(
            f"Scores are means of {runs} runs; +- is half the width of the 95 % confidence interval of the "
            "mean, by Student's t."
        )
    relations = {row.placement: row.json()["neighbours"] for row in rows if row.plan.budget}
    if len(set(relations.values())) > 1:
        named = "; ".join(f"{placement} {relation}" for placement, relation in relations.items())
        texts.append(
            f"The neighbouring relations differ ({named}), so equal epsilons are not equal promises: under "
            "replace-one the same noise gives a larger epsilon."
        )
    for row in rows:
        if row.placement == Distributed.name:
            texts.append(
                "Under distributed noise, epsilon against the server counts each message with its own share "
                "of the noise. Sampling gets no credit, since the server draws the cohorts."
            )
        if most := row.plan.max_participations:
            texts.append(
                f"Under local noise a client gives data to at most {counted(most, 'release')} and sends "
                f"noise only after that (max-participations={most}; where it is 0, compare sets the expected "
                "number). The server's own loop keeps this limit."
            )
    return [*texts, *adding_up(rows)]


def adding_up(rows: Sequence[Row]) -> list[str]:
    """What all runs together tell of the data that they share, in sentences."""
    texts, private = [], [row for row in rows if not unprotected(row.plan.config)]
    for row in rows:
        if row.plan.budget is None:
            models = [str(result.folder / run_files.MODEL) for result in row.results if result.folder]
            several = len(row.results) > 1
            runs, their = ("The runs", "their models") if several else ("The run", "its model")
            named = f", {', '.join(models)}," if models else ""
            texts.append(
                f"{runs} {row.placement} {'are' if several else 'is'} NOT PRIVATE: no noise is added. Do not "
                f"publish {their}{named} or {their.split()[0]} scores if the data is private: nothing bounds "
                "what they reveal."
            )
    if sum(len(row.results) for row in private) < 2:
        return texts
    unit, delta = (
        private[0].plan.config.unit,
        max(row.plan.budget.delta for row in private if row.plan.budget),
    )
    schedules = [events for row in private for events in _charged(row)]
    events = tuple(under_one_relation([event for events in schedules for event in events]))
    names = ", ".join(row.placement for row in private)
    try:
        total = f"at most epsilon {_together(events, delta):.4g} at delta {delta:.3g}"
    except UnsupportedEvent:
        total = "more than each of them (no accounting method here supports them together)"
    what = neighbours(unit, [event for events in schedules for event in events], events)
    return [
        *texts,
        f"The runs are on the same data, so they add up. Against who sees the models of {names}: {total}; "
        f"{what}.",
    ]


def _charged(row: Row) -> list[tuple[Event, ...]]:
    """Each run's releases as who sees the models does; all planned ones if somebody stopped it."""
    runs = [
        parse(result.ledger, row.placement).events if result.stopped.complete else row.plan.events
        for result in row.results
    ]
    if row.plan.max_participations is None:
        return runs
    return [tuple(observer_events(row.plan, events)) for events in runs]  # charged is what the server sees


@lru_cache(maxsize=4)
def _together(events: tuple[Event, ...], delta: float) -> float:
    try:
        return epsilon(events, delta).epsilon
    except UnsupportedEvent:
        return epsilon(events, delta, "rdp").epsilon


def header(rows: Sequence[Row]) -> tuple[str, ...]:
    """The header of a table of these rows; all have one task, and so one measure."""
    measure = shown(next((row.json() for row in rows if row.result.metrics), {}))
    return ("placement", "defends against", "neighbours", f"test {measure.words}", SERVER, MODELS)


def cells(row: Row) -> list[str]:
    """The row as text, in the order of ``header``."""
    data = row.json()
    measure = shown(data)
    score = measure.text(data[measure.key]) if measure.key in data else ""
    if len(row.results) > 1 and measure.key in row.spread:
        score += f" +- {measure.text(row.spread[measure.key][1])}"
    epsilons = [_cell(data[key], data["epsilon is"]) for key in (SERVER, MODELS)]
    name = row.placement if row.plan.budget else f"{row.placement} (NOT PRIVATE)"
    return [name, data["defends against"], data["neighbours"] or "", score, *epsilons]


def _cell(value: float | None, kind: str | None) -> str:
    if value is not None:
        return f"{value:.3g}" + (" (an ESTIMATE)" if kind == "estimate" else "")
    return "infinite"


def draw(rows: Sequence[Row]) -> Figure:
    """The score against rounds; each line says what its whole budget is, and against whom it holds.

    Of several runs the line is the mean, and the band its 95 % confidence interval.
    """
    figure, [axes] = plotting.panels(7.5, 4.5)
    measure = shown(next((row.result.metrics[-1] for row in rows if row.result.metrics), {}))
    every: list[float] = []
    differ = len({row.json()["neighbours"] for row in rows if row.plan.budget}) > 1
    for row in rows:
        rounds, heights, halves = _course(row, measure)
        lowest, highest = ([h + sign * d for h, d in zip(heights, halves, strict=True)] for sign in (-1, 1))
        every += highest
        budget = row.plan.budget
        kind = ", an ESTIMATE" if budget and row.json()["epsilon is"] == "estimate" else ""
        against = "not private"
        if budget:
            against = f"epsilon {budget.epsilon:g} against {AGAINST[row.placement]}{kind}"
            against += f", {row.json()['neighbours']}" if differ else ""
        against += f"; n = {len(row.results)}" if len(row.results) > 1 else ""
        label = f"{row.placement} ({against})"
        color, dashes, marker = _STYLES[row.placement]
        own: dict[str, Any] = {"linestyle": dashes, "marker": marker, "markevery": max(1, len(rounds) // 10)}
        axes.plot(rounds, heights, color=color, markersize=4, label=label, **own)
        if any(halves):
            axes.fill_between(rounds, lowest, highest, color=color, alpha=0.15, linewidth=0)
    guessing = accuracy_of_guessing([row.result.report for row in rows], measure)
    if guessing is not None:
        plotting.level(axes, guessing, "guessing")
    axes.set(xlabel="round", ylabel=measure.axis, ylim=measure.limits(every))
    plotting.rule(axes, whole=True)
    plotting.legend(figure, axes)
    config = rows[0].plan.config
    means: list[str] = []
    if budget := next((row.plan.budget for row in rows if row.plan.budget), None):
        means = [f"delta {budget.delta:.3g}, {budget.method}, the privacy unit is one {config.unit}"]
    seeds = [str(result.config.seed) for result in rows[0].results if result.config.seed >= 0]
    seeded = [f"{NOT_PRIVATE} (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})"] if seeds else []
    plotting.title(figure, [task(config), *means, *seeded])
    if any(len(row.results) > 1 for row in rows):
        bands = "Lines: the mean of n runs; bands: the 95 % confidence interval of the mean"
        plotting.footer(figure, [f"{bands}, cut at {'0 and 100 %' if measure.fraction else '0'}."])
    return figure


def _course(row: Row, measure: Metric) -> tuple[list[int], list[float], list[float]]:
    """(rounds at which all runs were evaluated, mean scores, half widths of their 95 % intervals)."""
    records_of = [[*round_0(result.report), *result.metrics] for result in row.results]
    by_round = [{record["round"]: record for record in records} for records in records_of]
    rounds = sorted(set.intersection(*map(set, by_round)))
    points = [interval(measure.heights([records[at] for records in by_round])) for at in rounds]
    return rounds, [mean for mean, _ in points], [half for _, half in points]
