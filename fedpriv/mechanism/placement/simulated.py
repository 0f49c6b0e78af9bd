"""Central noise as it would be over larger cohorts than those that a simulation draws.

A simulation of 50 clients a round can show the utility of a deployment with 1,000. With the expected cohort m
of the simulation, a cohort M drawn from a population N, and the noise multiplier z that spends the budget
over rounds at the rate M / N, the std of the noise is

    on the sum of the m contributions: z S m / M        on their mean: z S / M

so that the mean has the noise of a mean over M. This is ``noise_cohort_size`` of pfl-research's benchmarks
(Granqvist et al. 2024; ``parse_mechanism`` in benchmarks/utils/argument_parsing.py: sampling probability
noise_cohort_size / population, and noise times cohort_size / noise_cohort_size). The mean over m clients
varies more than one over M would, so that the simulated utility errs on the low side.

Who sees the models of the simulation sees sums over m clients with the fraction m / M of the noise: the
events are those of the population N, and bound nothing for the simulated clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from fedpriv.accounting.events import Event
from fedpriv.mechanism.placement.central import Central
from fedpriv.mechanism.sampling import Sampler


@dataclass(frozen=True, kw_only=True)
class SimulatedNoise(Central):
    """Central noise of the cohorts of ``stands_for`` on the mean over those of ``sampler``: NOT private.

    It is in no registry: a run has it by the setting ``noise-cohort``, which marks its outputs.

    Attributes:
        sampler: draws the cohorts of the simulation.
        stands_for: draws the cohorts that the noise and the events are for.
    """

    sampler: Sampler
    stands_for: Sampler

    @property
    def share(self) -> float:
        """m / M: the noise on a sum, as a share of the calibrated noise."""
        return self.sampler.expected_size / self.stands_for.expected_size

    def resized(self, factor: float) -> Self:
        """The placement for a release over ``factor`` times the usual cohorts."""
        if factor == 1:
            return self
        return replace(self, sampler=self.sampler.resized(factor), stands_for=self.stands_for.resized(factor))

    def server_stds(self, stds: Sequence[float], replies: int) -> tuple[float, ...]:
        """The calibrated stds times m / M, for any number of replies."""
        return self.total_stds(stds)

    def total_stds(self, stds: Sequence[float]) -> tuple[float, ...]:
        """The calibrated stds times m / M."""
        return tuple(std * self.share for std in stds)

    def enforced_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """The event of a release over the cohorts that the run stands for."""
        return self.stands_for.event(noise_multiplier)

    def observer_event(self, sampler: Sampler, noise_multiplier: float) -> Event:
        """The same."""
        return self.stands_for.event(noise_multiplier)
