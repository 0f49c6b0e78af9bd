"""Which runs can be resumed, from their settings alone."""

from __future__ import annotations

from fedpriv.config.schema import Config
from fedpriv.mechanism.placement import PLACEMENTS, LocalSettings


def obstacle(config: Config) -> str | None:
    """Why a run of these settings cannot be resumed; None where it can."""
    if config.by_silo and not (config.nodes_own_data or config.in_process):
        return "the states of its silos were in its actors' memory only (level=client with engine=ray)"
    if _capped(config):
        return "which clients have given data was in memory only (max-participations)"
    if config.given is not None:
        return "its optimizer was handed over as an object, which is not stored (name it as module:name)"
    if config.seed < 0 and config.method.draws(config.own):
        return "what was drawn before round 1 was in memory only"
    return None


def _capped(config: Config) -> bool:
    """Whether somebody may be kept from giving data to a release; a cap of all rounds keeps nobody."""
    if PLACEMENTS[config.placement].settings is not LocalSettings:
        return False
    return 0 < config.part(LocalSettings).max_participations < config.rounds
