"""The privacy statement of a run: who is trusted, the privacy unit, the sampling, and what is not covered.

Everything follows from public configuration.
"""

from __future__ import annotations

from fedpriv.config.plan import Plan
from fedpriv.config.schema import Config
from fedpriv.mechanism.placement import PLACEMENTS, Central, LocalSettings, SimulatedNoise
from fedpriv.mechanism.sampling import SAMPLERS
from fedpriv.mechanism.sampling.cyclic_poisson import CyclicPoisson
from fedpriv.tasks import metrics

BY_SILO = (
    "Each silo trusts only itself: it adds all the noise to its own sums before anything leaves it. The "
    "guarantee for an example holds against the server, the other silos and everyone who sees the models of "
    "all rounds. It does not hold against the example's own silo."
)

KEPT_BY_SERVER = (
    " The limit of participations (max-participations) is kept by the server's own loop: the guarantee "
    "against the server holds only if it uses the data of no {unit} more often."
)

CENTRALISED = (
    "Centralised: one party holds all examples, trains the model and adds the noise. Everyone whose example "
    "is in the data trusts this party. The guarantee holds against everyone who sees the released models of "
    "all rounds."
)

_TEST_SCORE = (
    "the test score: it did not influence this run, but it is optimistic if it is used to choose among runs"
)

_SILO_NOTES = (
    "members of a silo: they see its examples",
    "an example that is in several silos, and several examples of one person: the guarantee is weaker for "
    "them, since their epsilons add up, and delta grows, too",
    "which silos replied, and when",
)

NOT_COVERED = (
    "the choice of hyper-parameters, architecture and data set: choosing them on private data costs privacy "
    "that is not accounted for here",
    "other runs: this epsilon is for this run alone; several runs on the same data compose to a larger "
    "epsilon",
    _TEST_SCORE,
    "side channels: timing, message sizes and who was online",
)

FAST_NOISE = (
    "attacks on floating-point noise: it is simulation grade. An adversary who examines the last bits, or "
    "who predicts the random generator, may learn more than epsilon allows (the default, noise-draws=exact, "
    "is designed against both)"
)

EXACT_NOISE = (
    "rounding errors of floating-point sums beyond 1/2048 of their sensitivity: exact noise pays for errors "
    "up to that size, which sums of up to 2^30 units, or of 10^7 units times places of an image or a text, "
    "stay below"
)

SECURE = (
    "Silos trust that at least n_min of them add their share of the noise. The guarantee holds against "
    "everyone who sees the released models of all rounds, and against the server, which learns the noisy sum "
    "of each release and no message (secure aggregation), also if it is malicious, while fewer than "
    "2 n_min - n of the n silos help it. In this simulation the server and all silos are one process, which "
    "protects nobody from it."
)

SIMULATED_NOISE = (
    "Simulated, not private: the noise is that of cohorts larger than those of this run (noise-cohort), so "
    "that nobody in this run is protected. In a run with those cohorts: "
)

SIMULATED_UNITS = (
    "the clients of this run: sums over their small cohorts have a fraction of the noise that epsilon is for"
)

NOTHING_COVERED = (
    "everything: no noise is added, so nothing bounds what the released models reveal about a unit",
    _TEST_SCORE,
)


def trust(config: Config) -> str:
    """Whom the units of a run must trust, and against whom the guarantee holds."""
    return (SIMULATED_NOISE if config.simulates_noise else "") + _trust(config)


def _trust(config: Config) -> str:
    placement = PLACEMENTS[config.placement]
    central = issubclass(placement, Central)
    if config.by_silo and central:
        return BY_SILO
    if config.centralised and central:
        return CENTRALISED
    if config.aggregates_securely:
        return SECURE + _colluding(config)
    cap = placement.server_view and config.part(LocalSettings).max_participations
    among = SAMPLERS[config.sampler].sampling.fixed_size if central else placement.at_parties
    return (
        placement.trust.replace("{party}", config.privacy_unit.party)
        + (KEPT_BY_SERVER.replace("{unit}", config.unit) if cap else "")
        + (_colluding(config) if among and config.clients > 1 else "")
    )


def _colluding(config: Config) -> str:
    """Whether the guarantee holds against other parties of the run, who know more than the models."""
    party = config.privacy_unit.party
    if not config.colluding_parties:
        return (
            f" Other {party}s are not covered as adversaries: they know their own participation and noise, "
            "which this epsilon does not account for."
        )
    number = metrics.counted(min(config.colluding_parties, config.clients - 1), party)
    subject = "The guarantee for the released models" if PLACEMENTS[config.placement].server_view else "It"
    return f" {subject} also holds against {number} with pooled knowledge of themselves (colluding-parties)."


def unit(plan: Plan) -> str:
    """The privacy unit: its name, a colon and a description."""
    if plan.config.centralised and not plan.by_silo:
        return "example: one example of the training set"
    if plan.config.privacy_unit.in_silos:
        return "example: one example of one silo"
    return f"client: {plan.config.partitioning.client}"


def sampling(plan: Plan) -> str:
    """How the cohort of each release is sampled."""
    text = plan.mechanism.sampler.description
    if isinstance(plan.mechanism.placement, SimulatedNoise):
        stands_for = plan.mechanism.placement.stands_for
        size = f"an expected size of {stands_for.expected_size:,.6g} of {stands_for.population:,}"
        return f"{text}; the noise and epsilon are those of cohorts with {size}: {stands_for.description}"
    if not plan.by_silo:
        return text
    whose = " in the silo that loses most" if len(plan.schedules) > 1 else ""
    return f"{text}{whose}; each silo samples its own cohort and keeps it secret"


def not_covered(plan: Plan) -> list[str]:
    """What the run's epsilon does not cover, as list items."""
    if plan.budget:
        noise = EXACT_NOISE if plan.mechanism.placement.exact else FAST_NOISE
        own = [SIMULATED_UNITS] if plan.config.simulates_noise else []
        return [*own, *_notes(plan), *NOT_COVERED, noise]
    return [*NOTHING_COVERED, *_notes(plan)]


def _notes(plan: Plan) -> list[str]:
    notes = list(_SILO_NOTES) if plan.by_silo else []
    if plan.config.dataset.startswith("infinite"):
        notes.append(
            "the person who wrote a digit: images deformed from one source digit count as separate units, "
            "since the unit is the generated image"
        )
    elif not (plan.by_silo or plan.config.divided):
        notes.append(
            "a person with several examples: each example is a separate unit, and the guarantee for the "
            "person is weaker, since their epsilons add up, and delta grows, too"
        )
    if plan.config.privacy_unit.in_silos and plan.config.partitioning.several:
        notes.append(
            "which examples a silo holds, and which of them it uses if it has more than its public number: "
            "this is fixed before the run and counts as public"
        )
    if plan.config.partitioning.natural:
        notes.append(
            "a user's examples in the public test part: models are scored on them, and public examples are "
            "taken from them"
        )
    if isinstance(plan.mechanism.sampler, CyclicPoisson) and plan.mechanism.sampler.bands > 1:
        notes.append(
            f"the {plan.config.unit}s' numbers, by which each may be asked in some releases only: they count "
            f"as public, and if a {plan.config.unit} is removed, the others keep theirs"
        )
    if plan.config.public_examples:
        notes.append(
            f"the {plan.config.public_examples} public examples, taken from the test part: the optimizer "
            "uses them without noise, and the score is computed on the remaining test examples"
        )
    if plan.mechanism.placement.min_replies and plan.mechanism.observer_event(1.0).truncation:
        party = plan.config.privacy_unit.party
        notes.append(
            f"dropouts: if too few {party}s reply, a round releases nothing. This reveals some information "
            f"about the cohort's size, which is accounted for only if all {party}s reply"
        )
    return notes
