"""The report: trust, adversaries' views, bounds and estimates, and what the guarantee does not cover."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from helpers.small import SMALL, small
from matplotlib.figure import Figure

from fedpriv.accounting import Event, epsilon
from fedpriv.accounting.attack_odds import attack_odds
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.optimizers import DpSrm
from fedpriv.optimizers.schedules import Constant
from fedpriv.report import adversaries, markdown, plots
from fedpriv.report import summary as summary_module

METRICS = [{"round": 6, "accuracy": 0.875, "loss": 0.5, "epsilon": 2.9}]


def summary_of(plan: Plan, releases: int | None = None, stopped: str = "rounds") -> dict[str, Any]:
    return summary_module.summarise(plan, plan.mechanism.planned_events()[:releases], METRICS, stopped)


def both(**changes: object) -> tuple[dict[str, Any], str]:
    summary = summary_of(make_plan(small(**changes)))
    return summary, markdown.markdown(summary)


TRUST = {
    "none": "There is no protection",
    "central": "Each client trusts the server, which sees its exact contributions",
    "local": "A node without its own epsilon-limit accepts the epsilon that a run states",
    "distributed": "AND every unit takes part in every release: the server draws the cohorts",
}


@pytest.mark.parametrize("placement", TRUST)
def test_each_placement_says_who_is_trusted(placement: str) -> None:
    summary, text = both(placement=placement)
    assert TRUST[placement] in summary["privacy"]["trust"]
    assert summary["privacy"]["trust"] in text
    assert summary["privacy"]["placement"] == placement


@pytest.mark.parametrize("placement", TRUST)
def test_the_report_of_silos_has_no_clients(placement: str) -> None:
    cap = {"max_participations": 2} if placement == "local" else {}
    silos = {"unit": "example", "clients": 10, "examples_per_client": 100}
    summary, text = both(placement=placement, **silos, **cap)
    assert "client" not in text.lower()
    if placement == "local":
        assert summary["privacy"]["views"][0]["against"] == "the server, for the unit that lost most"
        assert "against the server, for the example with the largest privacy loss: whatever" in text
        assert "| the server, for the example with the largest privacy loss (the enforced" in text
        assert "the server, for the client with the largest privacy loss" in both(placement="local")[1]


def test_a_limit_of_participations_is_said_to_be_the_servers() -> None:
    said = "The limit of participations (max-participations) is kept by the server's own loop"
    assert said in both(placement="local", max_participations=2)[1]
    assert said not in both(placement="local")[1]


def test_failed_releases_keep_their_cohorts_rate() -> None:
    """DP-SRM's first release, made twice because it failed once, is over b_0 clients both times."""
    plan = make_plan(small(placement="local", sampler="fixed-size"))
    method = DpSrm(Constant(0.1), 1.0, 0.1, 0.5, first_cohort=2.0)
    plan = replace(plan, mechanism=replace(plan.mechanism, optimizer=method))
    first, *later = plan.mechanism.planned_events()
    seen = adversaries.observer_events(plan, [first, first, *later])
    cohort = round(plan.mechanism.sampler.expected_size)
    assert [event.cohort for event in seen] == [2 * cohort, 2 * cohort] + [cohort] * len(later)
    noise = [2 * math.sqrt(2 * cohort - 1)] * 2 + [math.sqrt(cohort - 1)] * len(later)  # one knows its own
    assert [event.noise_multiplier / plan.mechanism.scale for event in seen] == pytest.approx(noise)


def test_a_cap_over_cohorts_of_fixed_size_gets_no_credit_for_sampling() -> None:
    """Poisson sampling keeps its amplification: a cap only lowers the probability of taking part."""
    plan = make_plan(small(placement="local", sampler="fixed-size", max_participations=2))
    seen = adversaries.observer_events(plan, plan.mechanism.planned_events())
    noise = sorted(event.noise_multiplier for event in plan.mechanism.planned_events())[:2]
    assert [event.noise_multiplier for event in seen] == pytest.approx([z * math.sqrt(39) for z in noise])
    assert {(event.sampling, event.relation) for event in seen} == {("none", "replace-one")}
    poisson = make_plan(small(placement="local", max_participations=2))
    seen = adversaries.observer_events(poisson, poisson.mechanism.planned_events())
    assert [event.sampling for event in seen] == ["poisson"] * 6


@pytest.mark.parametrize("placement", ["central", "local", "distributed"])
def test_the_enforced_guarantee_spends_the_budget(placement: str) -> None:
    summary, text = both(placement=placement)
    gates = [view for view in summary["privacy"]["views"] if view["gates the budget"]]
    assert len(gates) == 1
    assert 0.99 * 3 <= gates[0]["epsilon"]["pld"]["epsilon"] <= 3
    assert (
        f"{adversaries.described(gates[0]['against'], summary['privacy']['unit'])} (the enforced guarantee)"
        in text
    )


def test_local_noise_has_both_views() -> None:
    summary, _ = both(placement="local", sampler="fixed-size")
    server, models = summary["privacy"]["views"]
    assert server["against"].startswith("the server, for the unit")
    assert models["against"] == "who sees the released models"
    assert not models["gates the budget"]
    assert models["epsilon"]["pld"]["epsilon"] < server["epsilon"]["pld"]["epsilon"] / 5


def test_all_epsilons_of_a_report_have_one_relation() -> None:
    """Under local noise the relation is replace-one, for the models' observers and for the server."""
    plan = make_plan(small(placement="local"))
    summary, text = both(placement="local")
    assert "| neighbouring data | replace one unit |" in text
    for events in (
        plan.mechanism.planned_events(),
        adversaries.observer_events(plan, plan.mechanism.planned_events()),
    ):
        assert {event.relation for event in events} == {"replace-one"}
    models = summary["privacy"]["views"][1]["epsilon"]["pld"]["epsilon"]
    z = plan.mechanism.planned_events()[0].noise_multiplier * math.sqrt(plan.mechanism.placement.shares)
    once = Event(z, "poisson", "replace-one", rate=0.1, count=1)
    assert (
        models
        > epsilon([once], plan.budget.delta).epsilon
        > epsilon([replace(once, relation="add-remove")], plan.budget.delta).epsilon
    )


def test_bounds_and_estimates_are_distinguished() -> None:
    summary, text = both()
    cells: Mapping[str, Any] = summary["privacy"]["views"][0]["epsilon"]
    assert {name: cell["kind"] for name, cell in cells.items()} == {
        "pld": "bound",
        "rdp": "bound",
        "gdp-clt": "estimate",
    }
    assert cells["pld"]["epsilon_lower"] <= cells["pld"]["epsilon"] < cells["rdp"]["epsilon"]
    assert cells["gdp-clt"]["epsilon"] < cells["pld"]["epsilon_lower"]  # why it is not a bound
    assert "GDP-CLT can understate epsilon several-fold" in text
    row = next(line for line in text.splitlines() if "| GDP-CLT |" in line)
    assert row.endswith("| estimate |")


def test_epsilon_is_explained_in_a_sentence() -> None:
    text = both()[1]
    assert "times its value, plus delta, if any one client is added to the data or removed from it." in text
    assert "IF the estimate is right" not in text
    assert "IF the estimate is right" in both(accounting="gdp-clt")[1]
    fixed = both(sampler="fixed-size", unit="example", clients=4, examples_per_client=100)[1]
    assert "plus delta, if any one example is replaced by another." in fixed


@pytest.mark.parametrize("placement", [pytest.param("central", marks=pytest.mark.slow), "distributed"])
def test_the_statement_covers_colluding_parties(placement: str) -> None:
    fixed = {"placement": placement, "sampler": "fixed-size", "optimizer": "dp-sgd"}
    summary = both(**fixed)[0]
    text = "It also holds against 1 client with pooled knowledge of themselves (colluding-parties)."
    assert summary["privacy"]["trust"].endswith(text)
    assert "fixed size 40 of 400, without replacement; accounted for as 40 of the 399" in both(**fixed)[1]
    alone = both(**fixed, colluding_parties=0)[0]["privacy"]
    assert alone["trust"].endswith("which this epsilon does not account for.")
    assert alone["sampler"] == "fixed size 40 of 400, without replacement"
    assert "pool" not in both(placement="central")[0]["privacy"]["trust"]


def test_a_report_says_that_a_budget_protects_hardly_anybody() -> None:
    """As the command does before the run: it is the report that others read."""
    text = both(clients=400, epsilon=30, delta=0.002, rounds=1)[1]
    assert "\nNOTE: epsilon 30 gives almost no protection: " in text
    assert "\nNOTE: delta 0.002 is large: publishing the data of one unit in 500 would satisfy it" in text
    assert "NOTE" not in both(clients=400, epsilon=3, delta=1e-5, rounds=1)[1]


@pytest.mark.parametrize(("stopped", "resumed"), [("interrupted", ()), ("failed", ()), ("rounds", (2,))])
def test_a_stopped_or_resumed_run_states_the_full_budget(stopped: str, resumed: tuple[int, ...]) -> None:
    plan = make_plan(small())
    events = plan.mechanism.planned_events()[:3]
    text = markdown.markdown(summary_module.summarise(plan, events, [], stopped, resumed=resumed))
    spent = epsilon(events, 1 / 4000).epsilon
    assert spent < 2.5
    assert (
        "If the run was not stopped because of its results, the spent epsilon means for an attack: " in text
    )
    assert (
        f"it spent epsilon {spent:.4g}. If you stopped it because of its results, report the full budget"
        in text
    )
    assert "Epsilon 3 at delta 0.00025 against anyone who sees the released models" in text
    assert "it spent" not in markdown.markdown(summary_module.summarise(plan, events, [], "budget"))


def test_an_overflowing_power_of_epsilon_is_omitted() -> None:
    text = both(epsilon=2000.0)[1]
    assert re.search(r"grows to at most e\^19\d\d times its value, plus delta", text), text


def test_the_numbers_are_the_accountants() -> None:
    plan = make_plan(small())
    for name in ("pld", "rdp", "gdp-clt"):
        answer = epsilon(plan.mechanism.planned_events(), 1 / 4000, name)
        assert summary_of(plan)["privacy"]["views"][0]["epsilon"][name]["epsilon"] == answer.epsilon


@pytest.mark.parametrize("method", ["zcdp", "tcdp"])
def test_the_method_that_enforces_the_budget_is_in_the_table(method: str) -> None:
    summary, text = both(accounting=method)
    cell = summary["privacy"]["views"][0]["epsilon"][method]
    assert 1 < cell["epsilon"] <= 3
    label = {"zcdp": "zCDP", "tcdp": "tCDP"}[method]
    assert f"enforced by {label} accounting" in text
    assert f"| {label} |" in text
    assert cell["kind"] == "bound"


def test_a_method_that_does_not_support_the_sampler_says_so() -> None:
    summary, text = both(sampler="fixed-size")
    assert "does not support" in summary["privacy"]["views"][0]["epsilon"]["gdp-clt"]["error"]
    assert "| GDP-CLT | not supported | | |" in text


def test_unit_relation_sampler_and_delta_are_stated() -> None:
    summary, text = both()
    privacy = summary["privacy"]
    assert privacy["unit"] == "client: a client with its single example"
    assert (privacy["relation"], privacy["units"]) == ("add-remove", 400)
    assert privacy["sampler"] == "Poisson, each unit with probability 0.1"
    assert privacy["budget"] == {"epsilon": 3.0, "delta": 1 / 4000, "held by": "pld"}
    assert "| neighbouring data | add/remove one unit |" in text
    fixed, text = both(sampler="fixed-size")
    assert fixed["privacy"]["sampler"].startswith("fixed size 40 of 400, without replacement; accounted for")
    assert "| neighbouring data | replace one unit |" in text
    silos, _ = both(unit="example", clients=4, examples_per_client=100)
    assert silos["privacy"]["unit"] == "example: one example of one silo"
    several, _ = both(partition="iid", examples_per_client=3)
    assert several["privacy"]["unit"] == "client: a client with all its examples"
    assert "truncated to the public cap of" in both(placement="distributed")[0]["privacy"]["sampler"]


def test_deformations_of_one_digit_are_separate_units() -> None:
    note = "images deformed from one source digit count as separate units"
    assert note in both()[1]
    assert note not in both(dataset="digits")[1]


def test_persons_with_several_examples_are_mentioned() -> None:
    apart, tested = "a person with several examples", "a user's examples in the public test part"
    for changes, named in (
        ({"dataset": "digits"}, (True, False)),
        ({"dataset": "digits", "unit": "example", "clients": 4, "examples_per_client": 100}, (True, False)),
        ({"dataset": "digits", "partition": "iid"}, (False, False)),
        ({"dataset": "movielens-100k", "partition": "natural", "model": "factors"}, (False, True)),
    ):
        summary, text = both(**changes)
        assert ((apart in text), (tested in text)) == named
    assert summary["privacy"]["unit"] == "client: a user of the data set with all their training examples"


def test_a_regulariser_is_named() -> None:
    summary, text = both(regulariser="nonconvex", regularisation=0.01)
    assert summary["regulariser"] == {"kind": "nonconvex", "lambda": 0.01}
    assert "| regulariser | nonconvex, lambda 0.01; it uses no data and is not clipped |" in text
    assert both()[0]["regulariser"] is None
    assert "regulariser" not in both()[1]


def test_what_is_not_covered_is_listed() -> None:
    text = both()[1]
    for words in ("hyper-parameters", "other runs", "floating-point sums", "side channels"):
        assert words in text.partition("## What is not covered")[2]


@pytest.mark.parametrize(
    ("stopped", "words"),
    [
        ("rounds", "(public test set); all rounds done. Budget: epsilon 3"),
        ("budget", "stopped before the release that would have passed the budget"),
        ("interrupted", "interrupted; what was charged stays charged"),
        ("failed", "FAILED"),
    ],
)
def test_the_stop_reason_is_stated(stopped: str, words: str) -> None:
    summary = summary_of(make_plan(small()), 3, stopped)
    assert words in markdown.markdown(summary)
    assert summary["privacy"]["releases"] == 3
    assert summary["privacy"]["views"][0]["epsilon"]["pld"]["epsilon"] < 2


def test_a_random_length_and_the_smallest_number_of_replies_are_stated() -> None:
    drawn = both(optimizer="rrpsgd", learning_rate=0.1)[1]
    assert "all rounds up to the randomly drawn last round were run" in drawn
    summary, text = both(placement="distributed")
    fewest = summary["privacy"]["fewest replies"]
    assert fewest > 0
    assert f"| smallest number of replies for a release, n_min | {fewest} |" in text


def test_epsilon_is_told_as_odds_of_an_attack() -> None:
    """Of what was charged, for the unit that lost most; rounded up."""
    for placement in ("central", "local"):
        plan = make_plan(small(placement=placement))
        summary = summary_of(plan, plan.rounds)
        odds = attack_odds(plan.of_worst_client(plan.events))
        assert summary["privacy"]["attack odds"]["right"] == odds.accuracy
        assert (
            f"is right at most {math.ceil(odds.accuracy * 1e4) / 100:.3g} % of the time"
            in markdown.markdown(summary)
        )
        found = math.ceil(odds.found[0.01] * 1e4) / 100
        assert f"with 1 % false alarms finds it at most {found:.3g} % of the time" in markdown.markdown(
            summary
        )
    assert both(placement="none")[0]["privacy"]["attack odds"] is None
    assert "For an attack" not in both(placement="none")[1]


def test_nothing_released_is_no_epsilon() -> None:
    summary = summary_of(make_plan(small()), 0)
    assert summary["privacy"]["views"] == []
    assert "Nothing was released." in markdown.markdown(summary)


def test_no_noise_is_infinite() -> None:
    summary, text = both(placement="none")
    assert summary["privacy"]["budget"] is None
    assert "**No privacy: epsilon is infinite.**" in text
    assert summary["remark"] == "not private: no noise is added"
    assert "- everything: no noise is added" in text
    assert "floating-point noise" not in text
    assert "data set and model | infinite-digits, logistic" in text


def test_a_seed_is_named_and_both_marks_can_stand() -> None:
    assert both()[0]["remark"] is None
    summary, text = both(placement="none", seed=8)
    assert summary["remark"] == "not private: no noise is added; reproducible, not private (seed 8)"
    assert summary["remark"] in text
    assert summary["reproducibility"]["seed"] == 8
    assert "Anyone who knows the seed can subtract the noise" in text


@pytest.mark.parametrize("placement", TRUST)
def test_reports_are_json_and_name_versions(placement: str) -> None:
    summary = json.loads(json.dumps(both(placement=placement)[0], allow_nan=False))
    assert {"fedpriv", "torch", "flwr", "dp-accounting", "python"} <= set(summary["versions"])


@pytest.mark.usefixtures("rendered_pictures")
@pytest.mark.parametrize("metrics", [[], METRICS, [{**METRICS[0], "epsilon": None}]])
def test_curves_are_plotted_for_any_metrics(metrics: list[dict[str, Any]]) -> None:
    summary = summary_module.summarise(make_plan(small()), (), metrics, "interrupted")
    spending = [(record["round"], 1.0) for record in metrics]
    assert plots.curves(summary, metrics, spending).startswith(b"\x89PNG")


OTHER_SCORES = [
    ({"mse": 1.25, "loss": 0.625}, "Test mean squared error 1.25 after 6 rounds"),
    ({"accuracy": 0.5, "recall@5": 0.25, "loss": 3.0}, "Test accuracy 50.00% after 6 rounds"),
    ({"loss": 0.625}, "Test loss 0.625 after"),
    ({"mse": None, "loss": None}, "Test mean squared error - after"),  # a model that has diverged
]


@pytest.mark.usefixtures("rendered_pictures")
@pytest.mark.parametrize(("scores", "words"), OTHER_SCORES)
def test_a_run_without_accuracy_has_a_report_and_curves(scores: dict[str, float], words: str) -> None:
    metrics = [{"round": r, **scores, "epsilon": 1.0} for r in (3, 6)]
    summary = summary_module.summarise(make_plan(small()), (), metrics, "rounds")
    assert {name: summary["result"][name] for name in scores} == scores
    assert ("accuracy" in summary["result"]) == ("accuracy" in scores)
    assert words in markdown.markdown(summary)
    spending = [(record["round"], 1.0) for record in metrics]
    assert plots.curves(summary, metrics, spending).startswith(b"\x89PNG")


@pytest.mark.parametrize("rounds", [[6], [3, 6]])
def test_epsilon_is_drawn_from_0_on(rounds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self))
    metrics = [{**METRICS[0], "round": r} for r in rounds]
    spending = [(r, 2 + r / 10) for r in range(1, 7)]
    plots.curves(summary_module.summarise(make_plan(small()), (), metrics, "rounds"), metrics, spending)
    scores, spent = drawn[0].axes
    assert list(spent.lines[0].get_xdata()) == list(range(7))
    assert list(spent.lines[0].get_ydata()) == [0, *[epsilon for _, epsilon in spending]]
    assert all(float(tick).is_integer() for tick in scores.get_xticks())
    assert scores.get_title().startswith("infinite-digits, logistic, dynamic-dp-sgd, central noise")
    assert "in each silo" not in scores.get_title()


def test_the_plotted_epsilon_equals_the_evaluations_and_is_never_below_the_spent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spending is known after some rounds alone, and rounded up to the next of them; epsilon rises faster at
    first, so that a line from one to the next would be too low."""
    drawn: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self))

    def true(r: int) -> float:
        return math.sqrt(r / 60) * 3

    metrics = [{**METRICS[0], "round": r, "epsilon": true(r)} for r in range(10, 61, 10)]
    known = sorted({1, *range(4, 61, 4), *range(10, 61, 10)})
    every = [(r, true(min(at for at in known if at >= r))) for r in range(1, 61)]
    resumed = [(m["round"], m["epsilon"]) for m in metrics[:3]] + every[30:]
    for spending in (every, resumed):
        plots.curves(summary_module.summarise(make_plan(small()), (), metrics, "rounds"), metrics, spending)
        scores, spent = drawn.pop().axes
        curve, points = spent.lines[:2]
        assert curve.get_drawstyle() == "default"
        read = dict(zip(*curve.get_data(), strict=True))
        assert list(read) == list(range(61))
        assert all(read[r] >= true(r) for r in read)
        assert all(read[r] <= true(r) + 0.1 for r in read if r > 10)  # no stairs
        assert len(set(read.values())) == len(read)
        epsilons = [m["epsilon"] for m in metrics]
        assert [read[m["round"]] for m in metrics] == list(points.get_ydata()) == epsilons
        assert list(scores.get_xticks())[:7] == [0, 10, 20, 30, 40, 50, 60]
    lost = [*every, (60, 3.2)]  # charged, and gave no round
    plots.curves(summary_module.summarise(make_plan(small()), (), metrics, "rounds"), metrics, lost)
    assert [line[-2:].tolist() for line in drawn[0].axes[1].lines[0].get_data()] == [[60, 60], [3.0, 3.2]]


def test_the_plotted_epsilon_of_convex_or_constant_curves_is_never_below_the_spent_one() -> None:
    steeper = [(r, (4 * math.ceil(r / 4)) ** 2 / 400) for r in range(1, 41)]
    assert all(found >= r**2 / 400 for r, found in plots._every_round(steeper))
    capped = [(r, float(min(r, 5))) for r in range(1, 21)]
    assert plots._every_round(capped) == [(0, 0.0), *capped]


def test_the_picture_begins_with_the_score_before_round_1(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self))
    metrics = [{**METRICS[0], "round": 0, "accuracy": 0.125, "epsilon": 0.0}, *METRICS]
    plots.curves(summary_module.summarise(make_plan(small()), (), METRICS, "rounds"), metrics, [(6, 1.0)])
    scores, spent = drawn[0].axes
    assert [line[0] for line in scores.lines[0].get_data()] == [0, 12.5]
    assert [line[0] for line in spent.lines[1].get_data()] == [0, 0]


@pytest.mark.parametrize(
    ("method", "label"), [("pld", "spent, at most ("), ("gdp-clt", "spent (GDP-CLT, estimate")]
)
def test_the_axis_says_at_most_only_for_bounds(
    method: str, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self))
    plan = make_plan(small(accounting=method))
    plots.curves(summary_module.summarise(plan, plan.events, METRICS, "rounds"), METRICS, [(6, 1.0)])
    assert f"epsilon {label}" in drawn[0].axes[1].get_ylabel()


def test_the_plot_says_that_silos_add_their_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self))
    plan = make_plan(small(unit="example", clients=3, examples_per_client=60, level="client", silo_steps=3))
    plots.curves(summary_module.summarise(plan, (), METRICS, "rounds"), METRICS, [(6, 1.0)])
    assert "central noise in each silo\n" in drawn[0].axes[0].get_title()


def absence(partition: int, first: int, last: int, back: bool) -> dict[str, Any]:
    span = {"partition": partition, "from release": first, "to release": last}
    return {**span, "back": back, "why": ["no reply in time", "gone offline"]}


def test_long_lists_of_absences_are_shortened() -> None:
    often = [absence(2, release, release, True) for release in range(1, 30, 4)]
    epsilons = [*often, absence(0, 5, 8, True)]
    silos = {"unit": "example", "clients": 4, "examples-per-client": 50, "rounds": 30, "optimizer": "dp-sgd"}
    plan = make_plan(Config.parse({**SMALL, **silos}))
    summary = summary_module.summarise(plan, plan.events, METRICS, "rounds", absent=epsilons)
    assert summary["privacy"]["absences"] == epsilons
    text = markdown.markdown(summary)
    why = "(no reply in time, then gone offline), then back"
    assert f"- partition 0, 4 of 30 releases: in releases 5 to 8 {why}\n" in text
    assert f"- partition 2, 8 of 30 releases: in release 1 {why}; " in text
    assert f"in release 17 {why}; and 3 more times\n" in text
    assert "| releases charged | 30, including absent nodes |" in text


def test_absences_are_reported_for_silos_only() -> None:
    """Absences of clients would reveal who was sampled, so the report does not list them."""
    plan = make_plan(small())
    summary = summary_module.summarise(plan, plan.events, METRICS, "rounds", absent=[absence(0, 1, 2, True)])
    assert summary["privacy"]["absences"] is None
    assert "absent" not in markdown.markdown(summary)


def test_dropouts_that_reveal_the_cohort_are_mentioned() -> None:
    for changes, named in (
        ({"placement": "distributed"}, True),
        ({"placement": "distributed", "sampler": "fixed-size"}, False),
        ({"placement": "local"}, False),
    ):
        summary, _ = both(**changes)
        assert any(text.startswith("dropouts") for text in summary["privacy"]["not covered"]) == named
