"""Releases on cohorts of another size than the usual: which sizes a sampler can draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv._internal import validation

if TYPE_CHECKING:
    from fedpriv.mechanism.sampling import Sampler


def require_drawable(key: str, factor: float, sampler: Sampler, placement: str) -> None:
    """Refuse a cohort of ``factor`` times the usual size that the sampler cannot draw.

    Args:
        key: the setting that says the factor.
        factor: the size as a multiple of the usual one.
        sampler: draws the usual cohorts.
        placement: where the noise enters.

    Raises ArgumentError, which names the key.
    """
    from fedpriv.mechanism.sampling import Everyone, FixedSize, TruncatedPoisson

    if factor == 1:
        return
    if isinstance(sampler, Everyone):
        raise validation.fail(key, factor, "be 1 with sampler everyone")
    if isinstance(sampler, TruncatedPoisson):
        raise validation.fail(
            key, factor, f"be 1 with sampler poisson under {placement} noise", "use sampler fixed-size"
        )
    if factor * sampler.expected_size > sampler.population:
        most = sampler.population / sampler.expected_size
        raise validation.fail(key, factor, f"be at most {most:g}", "it would be more than everyone")
    if isinstance(sampler, FixedSize) and round(factor * sampler.size) < 1:
        raise validation.ArgumentError(
            f"{key}={factor:g} rounds to an empty cohort; use at least {1 / sampler.size:g}"
        )
