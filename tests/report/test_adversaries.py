"""The view of a server that sees each message, against the exact formula of the Gaussian mechanism."""

from __future__ import annotations

import math
from typing import Any

import pytest
from helpers.small import small
from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedpriv.config.plan import Plan, make_plan
from fedpriv.report import adversaries
from fedpriv.report.markdown import markdown
from fedpriv.report.summary import summarise

SILOS = {"unit": "example", "clients": 10, "examples_per_client": 100, "optimizer": "dp-sgd"}
CLIENTS = {"optimizer": "dp-sgd"}


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of two normal laws of std 1 at distance ``mu`` (Balle & Wang 2018), in logarithms."""

    def excess(epsilon: float) -> float:
        left, right = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return float(left + math.log1p(-math.exp(right - left)) - math.log(delta)) if right < left else -1.0

    return float(brentq(excess, 0.0, mu * mu + 50 * mu, xtol=1e-10))


def server_view(plan: Plan) -> dict[str, Any]:
    found = adversaries.views(plan, plan.events)
    assert [view["gates the budget"] for view in found] == [True, False]
    return found[1]


@pytest.mark.parametrize(
    ("settings", "replies", "moved"),
    [
        (SILOS | {"sampler": "everyone", "sampling_rate": 1.0}, 10, 1),
        (SILOS | {"sampler": "everyone", "sampling_rate": 1.0, "relation": "replace-one"}, 10, 2),
        (SILOS | {"sampler": "fixed-size"}, 10, 2),
        (SILOS, 10, 1),  # Poisson
        (CLIENTS | {"sampler": "everyone", "sampling_rate": 1.0}, 400, 2),
        (CLIENTS | {"sampler": "fixed-size"}, 40, 2),
        (CLIENTS | {"sampler": "fixed-size", "min_replies": 20}, 20, 2),
        (CLIENTS | {"sampler": "fixed-size", "min_replies": 20, "colluding_parties": 4}, 20, 2),
        (CLIENTS, None, 2),  # Poisson: n_min is the smallest size of the cohorts
    ],
)
def test_each_message_counts_with_its_share_of_the_noise_and_without_sampling(
    settings: dict[str, object], replies: int | None, moved: int
) -> None:
    """T releases of multiplier z / sqrt(n_min - c): a unit that is in all of them moves the mean by
    sqrt(T) sqrt(n_min - c) / z, or by twice as much if it is replaced."""
    plan = make_plan(small(placement="distributed", **settings))
    colluders = int(str(settings.get("colluding_parties", 1)))
    n_min = replies or plan.mechanism.placement.min_replies
    z, releases = plan.events[0].noise_multiplier, len(plan.events)
    mu = moved * math.sqrt(releases * (n_min - colluders)) / z
    view = server_view(plan)
    wanted = gaussian_epsilon(mu, view["delta"])
    cell = view["epsilon"]["pld"]
    assert cell["epsilon_lower"] <= wanted * (1 + 1e-9)
    assert wanted * (1 - 1e-9) <= cell["epsilon"] <= wanted * (1 + 1e-4)
    assert view["relation"] == ("add-remove" if moved == 1 else "replace-one")


def test_noise_that_changes_counts_release_by_release() -> None:
    """Dynamic DP-SGD's multipliers fall, so that every release has its own share."""
    plan = make_plan(small(placement="distributed", sampler="fixed-size", optimizer="dynamic-dp-sgd"))
    shares = [event.noise_multiplier / math.sqrt(39) for event in plan.events]
    assert len(set(shares)) == len(shares)
    mu = 2 * math.sqrt(sum(1 / share**2 for share in shares))
    view = server_view(plan)
    assert view["epsilon"]["pld"]["epsilon"] == pytest.approx(gaussian_epsilon(mu, view["delta"]), rel=1e-4)


def test_only_messages_with_a_share_of_the_noise_have_this_view() -> None:
    """Central noise leaves messages bare, and the budget of local noise limits this view already."""
    for placement in ("central", "local", "none"):
        plan = make_plan(small(placement=placement))
        assert adversaries.message_events(plan, plan.events) == []


def test_the_report_says_which_neighbours_the_number_is_for() -> None:
    for settings, replaced in ((CLIENTS, True), (SILOS, False)):
        plan = make_plan(small(placement="distributed", **settings))
        text = markdown(summarise(plan, plan.events, [], "rounds"))
        assert "the server, which sees each message with its own share of the noise" in text
        assert ("here one unit is replaced" in text) == replaced
