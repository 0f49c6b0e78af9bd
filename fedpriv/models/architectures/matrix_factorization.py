"""Matrix factorisation: predicts a value, such as a rating, from a pair of ids.

Li 2023 (appendix C.1) factorise MovieLens-100k (943 users x 1,682 items) with embeddings of size 100 and no
biases: 262,500 parameters. As in their code, both factors are drawn from a normal truncated at two standard
deviations, but with std 0.01 instead of 1. With 0.01 their settings give about their figures
(``simulations/dp2_movielens``). With 1 the initial predictions have std 7.7 for ratings of 1 to 5, and no
private run recovers from that.

Both factors near 0 are a saddle point, where the gradient is about 0. Therefore a short run of :func:`plain`
learns almost nothing, with or without noise. :func:`with_biases` is the usual model and learns from the first
step.
"""

from __future__ import annotations

from fedpriv._internal import validation
from fedpriv._internal.lazy import nn
from fedpriv.models.inputs import IDS, Inputs
from fedpriv.models.registry import Model, register


def plain(inputs: Inputs) -> nn.Module:
    """See :class:`fedpriv.models.layers.Factors`."""
    from fedpriv.models.layers import Factors

    return Factors(*_two(inputs))


def with_biases(inputs: Inputs) -> nn.Module:
    """See :class:`fedpriv.models.layers.BiasedFactors`."""
    from fedpriv.models.layers import BiasedFactors

    return BiasedFactors(*_two(inputs))


def _two(inputs: Inputs) -> tuple[int, int]:
    if len(inputs.tokens) != 2:
        raise validation.ArgumentError(
            f"Matrix factorisation needs two columns of ids (users and items), not {len(inputs.tokens)}."
        )
    return inputs.tokens[0], inputs.tokens[1]


register(
    Model(
        "factors",
        IDS,
        plain,
        "matrix factorisation with embeddings of 100",
        "262,500 on MovieLens-100k",
        "Li 2023, C.1",
    )
)
register(
    Model(
        "factors-biases",
        IDS,
        with_biases,
        "the same with a mean and biases",
        "265,126 on MovieLens-100k",
    )
)
