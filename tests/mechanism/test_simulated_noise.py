"""noise-cohort: the mean has the noise of a mean over larger cohorts, and every output says so."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.made_up_runs import ended
from helpers.small import small
from matplotlib.figure import Figure
from matplotlib.text import Text
from safetensors import safe_open
from scipy.stats import norm
from torch import Tensor
from typer.testing import CliRunner

import fedpriv
from fedpriv import ArgumentError
from fedpriv.accounting import Accountant, Event, Ledger
from fedpriv.accounting.record import read
from fedpriv.auditing.subject import require_auditable
from fedpriv.cli import app
from fedpriv.config import centralised
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import PartialSum, SumRequest
from fedpriv.federated.loop import run
from fedpriv.federated.worker import zeros
from fedpriv.flower.private_strategy import PrivateStrategy
from fedpriv.report import comparison, comparison_table, pictures, plots, sweep_results
from fedpriv.report.page import folders
from fedpriv.report.page.page import page
from fedpriv.report.sweep_results import of_groups
from fedpriv.rng import Key
from fedpriv.runs.exporters.base import parameters
from fedpriv.simulation.sweeps import plans
from fedpriv.simulation.sweeps.tuning import Price

MARK = "simulated, not private: the noise of cohorts of 1,000 of 1,000,000 clients (noise-cohort)"
# pfl-research's CIFAR-10: cohorts of 50 of 1,000 users, with the noise of 1,000 of 10^6.
PFL: dict[str, object] = {
    "clients": 1000,
    "sampling-rate": 0.05,
    "epsilon": 2.0,
    "delta": 1e-6,
    "clip-norm": 0.4,
    "noise-cohort": 1000,
    "noise-population": 10**6,
    "optimizer": "dp-sgd",
}


def pfl(**changes: object) -> Config:
    return small(**({key.replace("-", "_"): value for key, value in PFL.items()} | changes))


class Nobody:
    """An engine over clients whose contributions are all zero."""

    def gather(self, request: SumRequest) -> PartialSum:
        return PartialSum(zeros(request.query), 0)

    def close(self) -> None:
        """Nothing to release."""


def noise_of(config: Config, dimension: int = 40_000) -> Tensor:
    """What the first release of a run without signal is: the noise on the mean, (d,)."""
    plan = make_plan(config, dimension=dimension)
    key = Key.from_seed(3)
    assert plan.budget is not None
    gate = Accountant(plan.budget, plan.events)
    models: list[Tensor] = []
    run(
        plan.mechanism,
        torch.zeros(dimension),
        Nobody(),  # type: ignore[arg-type]
        gate,
        key,
        plan.cohorts(key),
        lambda progress: models.append(progress.state.params),
    )
    return -models[0]


def delta_of_gaussians(multiplier: float, releases: int, epsilon: float) -> float:
    """Balle & Wang 2018, theorem 8: delta of so many Gaussian releases over all units."""
    s = multiplier / math.sqrt(releases)
    a, b = 1 / (2 * s), epsilon * s
    return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))


@pytest.mark.parametrize("draws", ["exact", "fast"])
def test_the_noise_on_the_mean_is_that_of_the_larger_cohort_in_closed_form(draws: str) -> None:
    """Over cohorts of everyone, epsilon of T Gaussians has a closed form. The measured std is off by 2 %, or
    5.6 standard errors, in one of 5e7 runs."""
    config = pfl(noise_population=1000, delta=1e-5, noise_draws=draws, learning_rate=1.0)
    measured = float(noise_of(config).std())
    multiplier = 1000 * measured / 0.4
    assert measured == pytest.approx(
        0.4 * make_plan(config).mechanism.planned_events()[0].noise_multiplier / 1000, rel=0.02
    )
    low, high = (delta_of_gaussians(multiplier * by, 6, 2.0) for by in (1.02, 0.98))
    assert low < 1e-5 < high


def test_the_noise_follows_pfl_researchs_rule_by_another_accountant() -> None:
    """noise of the sum = z C cohort / noise_cohort, with z at the rate noise_cohort / population."""
    from dp_accounting.pld import privacy_loss_distribution

    plan = make_plan(pfl())
    assert plan.mechanism.planned_events()[0] == Event(
        plan.mechanism.scale, "poisson", "add-remove", rate=1e-3, population=10**6
    )
    [std] = plan.mechanism.placement.total_stds((plan.mechanism.scale * 0.4,))
    z = std / 0.4 * 1000 / 50
    one = privacy_loss_distribution.from_gaussian_mechanism(z, sampling_prob=1000 / 10**6)
    assert one.self_compose(6).get_epsilon_for_delta(1e-6) == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("sampler", ["poisson", "fixed-size"])
def test_a_larger_first_cohort_scales_both(sampler: str) -> None:
    """DP-SRM's first release has a cohort of its own; the noise on its mean is that of M times as large."""
    plan = make_plan(pfl(optimizer="dp-srm", srm_first_cohort=4.0, sampler=sampler))
    first, later = plan.mechanism.planned[:2]
    for release, size in ((first, 4000), (later, 1000)):
        placement = plan.mechanism.placement.resized(release.rate_factor)
        own = plan.mechanism.sampler.resized(release.rate_factor).expected_size
        assert placement.total_stds((1.0,))[0] / own == pytest.approx(1 / size)


def test_without_the_setting_nothing_changes_and_the_defaults_follow_from_it() -> None:
    plain = make_plan(small(sampling_rate=0.05, clients=1000)).mechanism
    assert plain.placement.total_stds((2.0,)) == (2.0,)
    config = small(clients=1000, sampling_rate=0.05, noise_cohort=1000).resolved()
    assert (config.noise_population, config.delta) == (20_000, 1 / 200_000)
    assert make_plan(pfl(placement="none")).budget is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"nodes_own_data": True}, "noise-cohort is 1000; it must be 0 where nodes own their data"),
        ({"unit": "example"}, "noise-cohort is 1000; it must be 0 where the unit is an example"),
        ({"placement": "local"}, "noise-cohort is 1000; it must be 0 with placement local"),
        ({"placement": "distributed"}, "noise-cohort is 1000; it must be 0 with placement distributed"),
        (
            {"sampler": "everyone", "sampling_rate": 1.0},
            "noise-cohort is 1000; it must be 0 with sampler every",
        ),
        ({"sampler": "cyclic-poisson"}, "noise-cohort is 1000; it must be 0 with sampler cyclic-poisson"),
        ({"noise_cohort": 49}, "noise-cohort is 49; it must be at least the run's own expected cohort, 50"),
        ({"noise_population": 999}, "noise-population is 999; it must be at least noise-cohort=1000"),
        ({"delta": 1.1e-6}, "delta is 1.1e-06; it must be at most 1 / noise-population = 1e-06"),
        ({"noise_cohort": 0}, "noise-population is 1000000, which needs noise-cohort"),
    ],
)
def test_what_is_no_simulation_of_clients_is_refused_in_one_line(
    changes: dict[str, object], text: str
) -> None:
    with pytest.raises(ArgumentError) as error:
        make_plan(pfl(**changes))
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)


def test_training_flower_apps_and_audits_refuse_it_in_one_line() -> None:
    with pytest.raises(
        ArgumentError, match="noise-cohort is 1000; it must be 0 where the unit is an example"
    ):
        make_plan(centralised.resolve({"dataset": "digits", "noise-cohort": 1000}))
    with pytest.raises(ArgumentError, match="noise_cohort is no setting of a Flower app's strategy"):
        PrivateStrategy(population=100, sampling_rate=0.1, rounds=2, epsilon=1.0, noise_cohort=1000)
    with pytest.raises(ArgumentError, match="noise-cohort is 1000; it must be 0 for an audit"):
        require_auditable(pfl())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run, with what its display and its callbacks were given in text files beside it."""
    place = tmp_path_factory.mktemp("simulated")
    shown: list[str] = []

    class Records(fedpriv.Callback):
        def on_evaluation(self, record: Any) -> None:
            shown.append(record["remark"])

    settings = pfl(evaluate_every=3)
    result = fedpriv.simulate(
        settings,
        folder=place / "run",
        progress=lambda status: shown.append(status.epsilon_text(status.spent)),
        callbacks=[Records()],
    )
    (place / "shown.json").write_text(json.dumps(shown))
    facts = [repr(result), result._repr_html_(), parameters(result)["remark"]]
    (place / "result.json").write_text(json.dumps(facts))
    result.save(place / "saved")
    return place


@pytest.mark.parametrize("name", ["run", "saved"])
def test_every_file_of_a_run_has_the_mark(folder: Path, name: str) -> None:
    place = folder / name
    report = json.loads((place / "report.json").read_text())
    assert report["remark"] == MARK
    assert report["privacy"]["attack odds"] is None  # would bound attacks on the clients of this run
    assert report["privacy"]["trust"].startswith("Simulated, not private")
    text = (place / "report.md").read_text()
    assert text.index(MARK) < text.index("Budget: epsilon")
    assert text.index("SIMULATED, not private. Of a run with") < text.index("Epsilon 1.9")
    assert (place / "config.toml").read_text().startswith(f"# {MARK}\n")
    assert all(json.loads(line)["remark"] == MARK for line in (place / "metrics.jsonl").open())
    assert read(place / "ledger.jsonl").header["remark"] == MARK
    for file in ("model.safetensors", *(["state.safetensors"] if name == "run" else [])):
        with safe_open(place / file, "pt") as tensors:
            assert tensors.metadata()["remark"] == MARK


def test_what_a_person_sees_of_a_run_has_the_mark(folder: Path) -> None:
    shown = json.loads((folder / "shown.json").read_text())
    assert len(shown) == 8
    assert all(text == MARK or text.endswith("of 2 (SIMULATED, not private)") for text in shown)
    assert all(MARK in text for text in json.loads((folder / "result.json").read_text()))
    told = CliRunner().invoke(
        app, ["account", "--ledger", str(folder / "run" / "ledger.jsonl"), "--delta", "1e-6"]
    )
    assert MARK in " ".join(told.output.split())
    assert MARK in repr(fedpriv.account(ledger=folder / "run" / "ledger.jsonl", delta=1e-6))


def test_a_run_on_the_command_line_says_it_before_its_first_round(tmp_path: Path) -> None:
    values = {**pfl().table(), "out": str(tmp_path / "run")}
    keys = ("model", "rounds", "engine", "out", *PFL)
    told = CliRunner().invoke(app, ["simulate", *(f"--set={key}={values[key]}" for key in keys)])
    assert told.exit_code == 0, told.output
    lines = told.output.splitlines()
    first = next(number for number, line in enumerate(lines) if "round 6/6" in line)
    assert MARK in " ".join(" ".join(lines[:first]).split())


def test_resuming_keeps_the_mark_and_the_noise(folder: Path, tmp_path: Path) -> None:
    class Cut(fedpriv.Callback):
        def on_evaluation(self, record: Any) -> None:
            if record["round"] == 3:
                raise KeyboardInterrupt

    fedpriv.simulate(pfl(evaluate_every=3), folder=tmp_path / "cut", callbacks=[Cut()])
    result = fedpriv.resume(tmp_path / "cut")
    assert result.report["remark"] == MARK
    multipliers = {event.noise_multiplier for event in read(tmp_path / "cut" / "ledger.jsonl").events}
    assert multipliers == {event.noise_multiplier for event in read(folder / "run" / "ledger.jsonl").events}


def words(figure: Figure) -> str:
    return " ".join(" ".join(str(text.get_text()) for text in figure.findobj(Text)).split())


def test_pictures_tables_and_pages_have_the_mark(folder: Path, rendered_pictures: None) -> None:
    [run, again] = [comparison.read_one(folder / name) for name in ("run", "saved")]
    assert MARK in words(plots.draw(run.report, run.metrics, [(6, 1.9)]))
    scoreless = [{**record, "accuracy": math.nan, "loss": math.nan} for record in run.metrics]
    figure = plots.draw(run.report, scoreless, [(6, 1.9)])
    assert figure.axes[0].get_xlim()[1] >= 6  # what was spent is in the picture of a run that diverged, too
    groups = comparison.grouped([run, again])
    assert groups[0].notes == [MARK]
    assert any(MARK in line for line in comparison_table.table(groups).notes)
    assert MARK in page(folders.read([folder / "run"]), "one run").replace("&#x27;", "'")
    drawn = [figure for _, _, figure in pictures.drawn(of_groups(groups), "two cells")]
    assert len(drawn) >= 3
    for figure in drawn:
        assert "simulated, not private" in words(figure).lower()


def test_sweeps_have_the_mark_before_they_run_and_in_their_table() -> None:
    settings = {key: value for key, value in pfl().table().items() if key in (*PFL, "model", "rounds")}
    grid = {"placement": ["central", "none"], "seed": [1]}
    notes = plans.prepare({"settings": settings, "grid": grid}).notes
    assert (
        "Cells with a noise-cohort are simulated, not private: their epsilon is that of larger cohorts."
        in notes
    )
    cells = [ended(0.5, **PFL), ended(0.6, **{**PFL, "placement": "none"})]
    assert [row["epsilon is"] for row in sweep_results.rows(cells, 2)[::2]] == [
        "simulated, not private",
        None,
    ]
    assert "epsilon is" not in sweep_results.rows(cells[1:], 1)[0]


def test_comparisons_have_the_mark_and_add_no_simulated_epsilons_up() -> None:
    values = {key: value for key, value in pfl().table().items() if key in (*PFL, "model")}
    compared = fedpriv.compare(values, rounds=2, engine="in-process", placements=["none", "central"], seeds=2)
    assert "central: simulated, not private" in repr(compared)
    assert "they add up" not in repr(compared)


def test_a_ledgers_picture_has_the_mark(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    def save(figure: Figure, *args: Any, **kwargs: Any) -> None:
        titles.append(words(figure))

    monkeypatch.setattr(Figure, "savefig", save)
    ledger = str(folder / "run" / "ledger.jsonl")
    plotted = ["--delta", "1e-6", "--method", "rdp", "--plot", str(tmp_path / "epsilon.png")]
    CliRunner().invoke(app, ["account", "--ledger", ledger, *plotted])
    assert MARK in titles[0]


def test_a_ledger_keeps_the_mark_when_it_is_summed_with_others(folder: Path, tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.jsonl", {"unit": "client"}) as ledger:
        ledger.record([Event(2.0, "none", "add-remove")])
    both = fedpriv.account(ledger=[folder / "run" / "ledger.jsonl", tmp_path / "ledger.jsonl"], delta=1e-6)
    assert any(MARK in note for note in both.notes)


def test_a_dry_run_has_the_mark_and_tuning_names_no_price() -> None:
    values = pfl().table()
    given = [f"--set={key}={values[key]}" for key in ("model", *PFL)]
    told = CliRunner().invoke(app, ["compare", "--placements", "none,central", "--dry-run", *given])
    assert f"central: {MARK}" in " ".join(told.output.split()), told.output
    assert "none: simulated" not in told.output
    assert Price.of(make_plan(pfl()), [make_plan(pfl())] * 3) is None
