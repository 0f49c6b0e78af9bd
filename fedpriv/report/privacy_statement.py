"""What a run promises to whom, in words: whose trust it takes, which unit it is of, and what it leaves out.

From public configuration alone.
"""

from __future__ import annotations

from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.mechanism.sampling import FixedSize
from fedpriv.tasks import metrics

TRUST = {
    "none": "Nobody is protected: no noise is added.",
    "central": (
        "Clients trust the server, which sees their exact contributions, and the channel to it. Protected "
        "against everyone who sees the released models, all rounds of them."
    ),
    "local": (
        "Clients trust nobody: each adds all of the noise to its own message. Protected against the "
        "server and everyone else."
    ),
    "distributed": (
        "Clients trust that at least n_min of them add their share of the noise. Protected against "
        "everyone who sees the released models, all rounds of them; against the server ONLY if it sees "
        "nothing but the sum, as under secure aggregation, which this run does not itself provide, AND "
        "everyone takes part in every release: it draws the cohorts, so that sampling hides nobody from it."
    ),
}

BY_SILO = (
    "Each silo trusts itself alone: it adds all the noise to its own sums before anything leaves it. "
    "Examples are protected against the server, the other silos and everyone who sees the models, all "
    "rounds of them; not against their own silo."
)

CENTRALISED = (
    "Centralised: one party holds all examples, trains the model and adds the noise, and whoever gave an "
    "example trusts it. Protected against everyone who sees the released models, all rounds of them."
)

_SILO_NOTES = (
    "a silo's own people, who see its examples",
    "an example that lies in several silos: their epsilons add; so do those of one person's examples",
    "which silos replied, and when",
)

NOT_COVERED = (
    "hyper-parameters, architecture and data set: choosing them on private data costs privacy that is "
    "not counted here",
    "the number of runs: this epsilon is of this run alone; runs on the same data compose",
    "the test score steered nothing here, but if it is used to choose among runs it is optimistic",
    "side channels: timing, message sizes and who was online",
)

FAST_NOISE = (
    "floating-point noise is simulation grade: an adversary who reads the last bits, or who finds out what "
    "the generator will draw, may learn more (noise-draws=exact is made against both)"
)

EXACT_NOISE = (
    "the rounding of sums while they are formed in floating point, beyond the 2000th of their "
    "sensitivity that exact noise makes up for: data made for it pass that in cohorts of some thousands"
)

NOTHING_COVERED = (
    "anything: no noise is added, so nothing bounds what the released models tell of any unit",
    "the test score steered nothing here, but if it is used to choose among runs it is optimistic",
)


def trust(config: Config) -> str:
    """Whom the units of a run trust, and against whom they are protected."""
    if config.level == "client" and config.placement == "central":
        return BY_SILO
    if config.centralised and config.placement == "central":
        return CENTRALISED
    among = config.sampler == "fixed-size" if config.placement == "central" else config.placement != "none"
    return TRUST[config.placement] + (_colluding(config) if among and config.clients > 1 else "")


def _colluding(config: Config) -> str:
    """What the other parties are taken to know, where they know more than the models."""
    parties = ("client", "silo")[config.unit == "example"]
    if not config.colluding_parties:
        return f" Other {parties}s are not meant: they know what they did themselves, which is not counted."
    number = metrics.counted(min(config.colluding_parties, config.clients - 1), parties)
    that = "What is said of the released models" if config.placement == "local" else "That"
    return f" {that} holds against {number} who may pool what they know of themselves (colluding-parties)."


def unit(plan: Plan) -> str:
    """What the privacy unit is."""
    if plan.config.centralised and not plan.by_silo:
        return "example: one example of the training set"
    if plan.config.unit == "example":
        return "example: one example of one silo"
    if plan.config.partition == "one-example":
        return "client: a client and its one example"
    if plan.config.partition == "natural":
        return "client: a user of the data set with all their training examples"
    return "client: a client with all its examples"


def sampling(plan: Plan) -> str:
    """How each release's cohort is drawn."""
    sampler, event = plan.mechanism.sampler, plan.mechanism.observer_event(1.0)
    if isinstance(sampler, FixedSize):
        text = f"fixed size {sampler.size} of {sampler.population}, without replacement"
        if sampler.known:
            text += f"; counted as {event.cohort} of the {event.population} whom no colluder knows"
    else:
        kinds = {
            "poisson": f"Poisson, each unit with probability {event.rate:g}",
            "none": "everyone in every release",
        }
        text = kinds[event.sampling]
    if event.truncation:
        text += f", cut to the public cap of {plan.mechanism.placement.shares}"
    return f"{text}; each silo draws its own, secretly" if plan.by_silo else text


def not_covered(plan: Plan) -> list[str]:
    """What the run's epsilon says nothing of."""
    if plan.budget:
        noise = EXACT_NOISE if plan.mechanism.placement.exact else FAST_NOISE
        return [*_notes(plan), *NOT_COVERED, noise]
    return [*NOTHING_COVERED, *_notes(plan)]


def _notes(plan: Plan) -> list[str]:
    notes = list(_SILO_NOTES) if plan.by_silo else []
    if plan.config.dataset.startswith("infinite"):
        notes.append(
            "images deformed from one source digit count as separate units: the unit is the drawn image, "
            "not the person who wrote the digit"
        )
    elif not plan.by_silo and (plan.config.unit == "example" or plan.config.partition == "one-example"):
        notes.append("a person who gave several examples: each is a unit of its own, and their epsilons add")
    if plan.config.partition == "natural":
        notes.append(
            "what a user has in the public test part: it is scored, and public examples taken from it"
        )
    if plan.config.public_examples:
        notes.append(
            f"{plan.config.public_examples} public examples, out of the test part: the optimizer learns from "
            "them as they are, and the score is of the others"
        )
    if plan.mechanism.placement.min_replies and plan.mechanism.observer_event(1.0).truncation:
        notes.append(
            "dropouts: where too few clients reply, a round releases nothing; that this happened tells "
            "something of the cohort's size, which is counted only for the case that all reply"
        )
    return notes
