"""Settings of placements and samplers: those that several share, and which single ones have of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv._internal.settings import Needs, Settings, needs, own_settings, setting
from fedpriv.mechanism.placement import PLACEMENTS, Placement
from fedpriv.mechanism.sampling import SAMPLERS
from fedpriv.mechanism.units import Level


def chosen(run: Mapping[str, Any]) -> type[Placement]:
    """The placement of a run, from all its settings by key."""
    return PLACEMENTS[str(run["placement"])]


def owned() -> dict[str, Needs]:
    """The settings that single placements and samplers have of their own, by key, with the choice that each
    needs."""
    return {
        key: needs(**{registry.setting: tuple(names)})
        for registry in (PLACEMENTS, SAMPLERS)
        for kind, names in own_settings(registry).items()
        for key in kind.fields()
    }


def _colluding(run: Mapping[str, Any]) -> bool:
    placement, drawn = chosen(run), SAMPLERS[str(run["sampler"])].sampling
    alone = not placement.adds_noise or Level.of(run).by_silo or run["clients"] == 1
    return not alone and (placement.at_parties or drawn.fixed_size)


# Conditions of the noise are not strict: placement=none takes a configuration as it is, so that runs can be
# compared.
class PartySettings(Settings):
    """Settings of parties that add noise or may collude."""

    min_replies: int = setting(
        0,
        "smallest number of replies for a release; 0: as many as the placement needs",
        ge=0,
        needs=Needs("clients that add the noise", lambda run: chosen(run).at_parties, strict=False),
    )
    colluding_parties: int = setting(
        1,
        "parties that may collude: they share the noise they added and their part in fixed-size cohorts; "
        "epsilon holds against them, too. 0: against outsiders only",
        ge=0,
        needs=Needs("several parties that add noise, or are drawn in cohorts of a fixed size", _colluding),
    )
