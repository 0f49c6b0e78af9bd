"""The only place that draws noise: bounded sums + query + placement -> noisy answer.

Noise std on a block's sum is ``query.noise_stds(z)``, always. A placement
(:mod:`fedpriv.mechanism.placement`) says who adds it.

A choice of the least of several numbers takes Laplace noise: :func:`choose_least`.

Noise is floating-point (simulation grade), from :mod:`fedpriv.mechanism.gaussian`, or where the placement
says ``exact`` from :mod:`fedpriv.mechanism.rounded_gaussian`: whole multiples of the step of a grid
(:mod:`fedpriv.mechanism.grid`) that the sums are brought to, of which the step is public. A little more
noise then pays for what rounding moves: sums of d entries that are S apart lie up to S + step sqrt(d) apart
on the grid, and 2**-11 S more are for float32's rounding while sums are formed
(tests/clipping/test_summing_errors.py measures it; data that were made to round alike move it by 0.0008 S
among 5,000 examples, and by 0.008 S among 50,000).

k noises that one node owes are drawn as one Gaussian of k times the variance, which has the same law for
whoever sees the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.mechanism.gaussian import Label, Normals
from fedpriv.mechanism.grid import noise_step, rounded
from fedpriv.mechanism.placement import Placement
from fedpriv.mechanism.query import Block, NoisyAnswer, Query, SumBlock
from fedpriv.mechanism.rounded_gaussian import Rounded
from fedpriv.rng import Key

SERVER, PARTY, CHOICE = "server-noise", "party-noise", "choice-noise"  # what streams are for

MARGIN = 2.0**-11  # of exact noise, above what is owed: for float32's rounding


def add_party_noise(
    sums: Sequence[Tensor],
    stds: Sequence[float],
    parties: int,
    key: Key,
    release: int,
    chunk: int,
    exact: Sequence[Block] = (),
) -> tuple[Tensor, ...]:
    """The noise that ``parties`` parties of one chunk owe, as one Gaussian of ``parties`` times the variance.

    Args:
        sums: a chunk's bounded sums, one per block.
        stds: the std one party adds to each block (``Placement.party_stds``).
        parties: how many parties' messages the sums stand for.
        key: the node's own key; OS entropy unless the run asked for a seed.
        release: the release's number in the run.
        chunk: the chunk's number in the release.
        exact: the query's blocks where noise is to be exact; then sums are float64.
    """
    label, owed = (PARTY, release, chunk), [std * math.sqrt(parties) for std in stds]
    if exact:
        steps = [noise_step(block, std) for block, std in zip(exact, stds, strict=True)]
        return _exactly(sums, Rounded(key, label, sums), owed, steps, exact)
    normals = Normals(key, label, sums).take()
    return tuple(total.add(z, alpha=std) for total, z, std in zip(sums, normals, owed, strict=True))


def draw_ahead(query: Query, placement: Placement, key: Key, index: int) -> Normals | Rounded | None:
    """Start drawing what the server may have to add to this release, while others are waited for."""
    return _draws(query, placement, key, index) if placement.adds_noise else None


def _draws(query: Query, placement: Placement, key: Key, index: int) -> Normals | Rounded:
    label: Label = (SERVER, index)
    like = query.points[0]
    blocks = [like if isinstance(block, SumBlock) else like.new_zeros(()) for block in query.blocks]
    return (Rounded if placement.exact else Normals)(key, label, blocks)


def _exactly(
    sums: Sequence[Tensor],
    draws: Rounded,
    stds: Sequence[float],
    steps: Sequence[float],
    blocks: Sequence[Block],
) -> tuple[Tensor, ...]:
    """The sums (float64) in whole steps, with noise in whole steps, of stds a little above what is owed."""
    scales = []
    for total, std, step, block in zip(sums, stds, steps, blocks, strict=True):
        moved = MARGIN + step * math.sqrt(total.numel()) / block.sensitivity
        scales.append(std * (1 + moved) / step)
    whole = draws.take(scales)
    return tuple(
        rounded(total, step).add_(noise, alpha=step)
        for total, noise, step in zip(sums, whole, steps, strict=True)
    )


def release(
    sums: Sequence[Tensor],
    replies: int,
    query: Query,
    noise_multiplier: float,
    placement: Placement,
    denominator: float,
    key: Key,
    index: int,
    ahead: Normals | Rounded | None = None,
) -> NoisyAnswer | None:
    """The noisy answer to a query, each block divided by the public expected cohort size.

    Args:
        sums: the gathered sums, one per block; already carrying the parties' noise where they add it.
        replies: how many parties they stand for. Private: used only to top the noise up.
        query: the question that was asked.
        noise_multiplier: z of the event that was charged.
        placement: who adds the noise.
        denominator: the public expected cohort size, > 0.
        key: the server's key.
        index: the release's number in the run; no two releases share noise.
        ahead: what :func:`draw_ahead` started for this release; the noise is the same without it.

    Returns:
        The answer in the points' dtype, rounded once the noise is on it, or None where fewer than
        ``placement.min_replies`` parties replied.

    Raises:
        ValueError: what was drawn ahead is another release's noise, which this one must not share.
    """
    if ahead is not None and ahead.label != (SERVER, index):
        raise ValueError(f"noise drawn ahead for {ahead.label} cannot serve release {index}")
    if not placement.releases(replies):
        return None
    owed, dtype = query.noise_stds(noise_multiplier), query.points[0].dtype
    stds = placement.server_stds(owed, replies)
    if not any(stds):
        return tuple((total / denominator).to(dtype) for total in sums)
    draws = ahead or _draws(query, placement, key, index)
    if isinstance(draws, Rounded):
        # By what is public: how many shares the server adds is not.
        first = placement.party_stds(owed) or owed
        steps = [noise_step(block, std) for block, std in zip(query.blocks, first, strict=True)]
        noisy = _exactly(sums, draws, stds, steps, query.blocks)
    else:
        each = zip(sums, draws.take(), stds, strict=True)
        noisy = tuple(total.double().add(z, alpha=std) for total, z, std in each)
    return tuple(total.div_(denominator).to(dtype) for total in noisy)


def choose_least(values: Tensor, sensitivity: float, noise_multiplier: float, key: Key, index: int) -> int:
    """Which of the values is least after Laplace noise: what a ``noisy-max`` event pays for.

    Args:
        values: shape (k,), finite; one unit more moves each by at most ``sensitivity``, and all of them in
            one direction.
        sensitivity: S > 0.
        noise_multiplier: z of the event; the noise has scale z S.
        key: the server's key.
        index: the release's number in the run.
    """
    scale = validation.non_negative("noise multiplier", noise_multiplier) * sensitivity
    noise = key.generator(CHOICE, index).laplace(size=len(values))
    return int((values.double().cpu() + scale * torch.from_numpy(noise)).argmin())
