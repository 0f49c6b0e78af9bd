"""Who adds the noise: nobody, the server, or the parties, completely or in shares.

A placement is a file of this package, which registers it with its own settings; nothing else lists
placements.

>>> Distributed(shares=9, min_replies=4).party_stds((2.0,))
(1.0,)
>>> list(PLACEMENTS), PLACEMENTS["local"].against
(['none', 'central', 'distributed', 'local'], 'the server')
"""

from fedpriv._internal.registry import import_modules
from fedpriv.mechanism.placement.at_parties import AtParties
from fedpriv.mechanism.placement.base import PLACEMENTS, Placement, PlacementContext, register
from fedpriv.mechanism.placement.central import Central
from fedpriv.mechanism.placement.distributed import Distributed, DistributedSettings
from fedpriv.mechanism.placement.local import Local, LocalSettings
from fedpriv.mechanism.placement.no_noise import NoNoise
from fedpriv.mechanism.placement.simulated import SimulatedNoise

import_modules(__name__, __path__)  # a new file registers its placement by lying in this folder

__all__ = [
    "PLACEMENTS",
    "AtParties",
    "Central",
    "Distributed",
    "DistributedSettings",
    "Local",
    "LocalSettings",
    "NoNoise",
    "Placement",
    "PlacementContext",
    "SimulatedNoise",
    "register",
]
