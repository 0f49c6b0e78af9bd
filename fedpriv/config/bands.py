"""The number of bands of correlated noise where none is given: that with the least noise on sums of releases.

>>> from fedpriv.config.schema import Config
>>> run = {"sampler": "cyclic-poisson", "optimizer": "dp-sgd", "noise-draws": "fast", "epsilon": 3.0}
>>> with_bands(Config.parse(run).resolved()).noise_bands
16
"""

from __future__ import annotations

from collections.abc import Iterator

from fedpriv.accounting import Budget, calibrate
from fedpriv.config.schema import Config
from fedpriv.mechanism.correlated import prefix_noise
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.mechanism.sampling import CyclicPoisson, CyclicSettings


def with_bands(config: Config) -> Config:
    """The configuration with the number of bands that noise-bands=0 stands for, from public numbers alone.

    ``config`` is resolved. Raises ArgumentError if the budget cannot be met.
    """
    if config.sampler != CyclicPoisson.name or config.part(CyclicSettings).noise_bands:
        return config
    bands = best_bands(config) if PLACEMENTS[config.placement].adds_noise else 1
    return config.model_copy(update={"noise_bands": bands})


def best_bands(config: Config) -> int:
    """The power of two whose noise on sums of releases has the least root mean square over the rounds.

    1, which is independent noise, is among them, so that the choice is never worse in this measure.
    """
    budget = Budget(config.epsilon, config.delta, config.accounting)
    return min(_candidates(config), key=lambda bands: sum_noise(config, bands, budget))


def sum_noise(config: Config, bands: int, budget: Budget) -> float:
    """The root mean square over the rounds of the noise std of the sum of all releases so far.

    It is in multiples of the clip norm, at the noise that spends the budget.
    """
    sampler = CyclicPoisson(config.units, config.sampling_rate, bands)
    events = [sampler.at(release).event(1.0) for release in range(config.rounds)]
    return calibrate(events, budget) * prefix_noise(bands, config.rounds)


def _candidates(config: Config) -> Iterator[int]:
    bands = 1
    while bands * config.sampling_rate <= 1 and bands <= min(config.rounds, config.units):
        yield bands
        bands *= 2
