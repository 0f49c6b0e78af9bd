"""Adds noise: bounded sums + query + placement -> noisy answer. No other module adds noise.

The noise std of a block's sum is always ``query.noise_stds(z)``; a placement
(:mod:`fedpriv.mechanism.placement`) defines who adds it. :func:`choose_least` chooses the smallest of several
numbers with Laplace noise.

Noise is floating-point (:mod:`fedpriv.mechanism.gaussian`, for simulations) or, if the placement is
``exact``, rounded (:mod:`fedpriv.mechanism.rounded_gaussian`): sums and noise are then multiples of the
public step of a grid (:mod:`fedpriv.mechanism.grid`). Slightly more noise compensates for rounding. Two sums
of d entries at distance S have at most the distance S + step sqrt(d) on the grid. :data:`MARGIN` S is for the
rounding while sums are formed. What a unit adds is a function of the unit alone, bit for bit
(:mod:`fedpriv.clipping.per_example`), so that two neighbouring sums differ by one unit's vector and by the
rounding of their additions:

- 2^-14 S: a unit's vector is longer than its clip norm by less. Its squared norm adds at most 2^8 squares in
  float32, which rounds the norm by 2^-17, or by 2^-16 where two norms are multiplied. Its clip factor and the
  product with it are rounded by 2^-24 each; that is at most 100 times 2^-23 where a sum over places is as
  small as 1/100 of its summands (if it is smaller, the gradient is formed).
- 2^-12 S: units are added in float64, in batches of at most 2^10. A float64 sum of k terms is off by at most
  k 2^-53 times the sum of their norms. For n units of one place each this is n 2^10 2^-53 S, and for L places
  at most 100 L times as much. Both sums together stay below 2^-12 S up to n = 2^30, or up to n L = 10^7.

The rest of MARGIN, 2^-13 S and more, is spare. float32 sums have no such bound: data made to round in one
direction changed one by 0.0008 S with 5,000 examples and by 0.008 S with 50,000. They are left to fast noise.
tests/clipping/test_summing_errors.py tests each number.

The noises of k parties on one node are drawn as one Gaussian of k times the variance: their sum has the same
distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv._internal import validation
from fedpriv.mechanism.correlated import NoiseRecursion
from fedpriv.mechanism.gaussian import Label, Normals
from fedpriv.mechanism.grid import noise_step, rounded
from fedpriv.mechanism.placement import Placement
from fedpriv.mechanism.query import Block, NoisyAnswer, Query, SumBlock
from fedpriv.mechanism.rounded_gaussian import Rounded
from fedpriv.rng import Key

SERVER, PARTY, CHOICE = "server-noise", "party-noise", "choice-noise"  # purposes of streams

MARGIN = 2.0**-11  # relative increase of exact noise to compensate for the rounding of sums; see above


def add_party_noise(
    sums: Sequence[Tensor],
    stds: Sequence[float],
    parties: int,
    key: Key,
    release: int,
    chunk: int,
    exact: Sequence[Block] = (),
) -> tuple[Tensor, ...]:
    """The sums of one shard with the noise of its parties, as one Gaussian of ``parties`` times the variance.

    Args:
        sums: the shard's bounded sums, one per block.
        stds: the noise std of one party for each block (``Placement.party_stds``).
        parties: the number of the shard's parties.
        key: the node's own key; OS entropy unless the run has a seed.
        release: the release's number in the run.
        chunk: the shard's number in the release.
        exact: the query's blocks if noise is exact, else (); the sums are then float64.
    """
    label, owed = (PARTY, release, chunk), [std * math.sqrt(parties) for std in stds]
    if exact:
        steps = [noise_step(block, std) for block, std in zip(exact, stds, strict=True)]
        return _added(sums, Rounded(key, label, sums, _scales(sums, owed, steps, exact)), steps)
    normals = Normals(key, label, sums).take()
    return tuple(total.add(z, alpha=std) for total, z, std in zip(sums, normals, owed, strict=True))


def draw_ahead(
    query: Query,
    noise_multiplier: float,
    placement: Placement,
    key: Key,
    index: int,
    recursion: NoiseRecursion | None = None,
) -> Normals | Rounded | None:
    """Start generating the server's noise for this release, in parallel with the parties' computation.

    None if the server adds none, or if its amount depends on the number of replies. With a recursion, only
    after the release before.
    """
    if not placement.adds_noise or placement.at_parties:
        return None
    stds = placement.server_stds(query.noise_stds(noise_multiplier), 0)
    return _draws(query, stds, stds, placement.exact, key, index, recursion)


def _draws(
    query: Query,
    stds: Sequence[float],
    public: Sequence[float],
    exact: bool,
    key: Key,
    index: int,
    recursion: NoiseRecursion | None,
) -> Normals | Rounded:
    """The server's noise: of these stds if it is exact, in steps that follow from ``public`` stds."""
    label: Label = (SERVER, index)
    like = query.points[0]
    blocks = [like if isinstance(block, SumBlock) else like.new_zeros(()) for block in query.blocks]
    if not exact:
        return Normals(key, label, blocks)
    scales = _scales(blocks, stds, _steps(query, public), query.blocks)
    if recursion is not None:
        return recursion.rounded(key, label, blocks, scales)
    return Rounded(key, label, blocks, scales)


def _steps(query: Query, public: Sequence[float]) -> list[float]:
    return [noise_step(block, std) for block, std in zip(query.blocks, public, strict=True)]


def _scales(
    like: Sequence[Tensor], stds: Sequence[float], steps: Sequence[float], blocks: Sequence[Block]
) -> list[float]:
    """The stds in steps, slightly enlarged to compensate for the rounding of the sums."""
    scales = []
    for tensor, std, step, block in zip(like, stds, steps, blocks, strict=True):
        rounding = MARGIN + step * math.sqrt(tensor.numel()) / block.sensitivity
        scales.append(std * (1 + rounding) / step)
    return scales


def _added(sums: Sequence[Tensor], draws: Rounded, steps: Sequence[float]) -> tuple[Tensor, ...]:
    """The sums plus noise, both in multiples of the steps (float64)."""
    each = zip(sums, draws.take(), steps, strict=True)
    return tuple(rounded(total, step).add_(noise, alpha=step) for total, noise, step in each)


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
    recursion: NoiseRecursion | None = None,
) -> NoisyAnswer | None:
    """The noisy answer to a query, each block divided by the public expected cohort size.

    Args:
        sums: the gathered sums, one per block, with the parties' noise if they add it.
        replies: the number of parties that replied. It is private and only determines the missing noise.
        query: the optimizer's query.
        noise_multiplier: z of the event that was charged.
        placement: who adds the noise.
        denominator: the public expected cohort size, > 0.
        key: the server's key.
        index: the release's number in the run; no two releases share noise.
        ahead: the result of :func:`draw_ahead` for this release; the noise is the same without it.
        recursion: the run's correlated noise (:mod:`fedpriv.mechanism.correlated`); None: independent noise.

    Returns:
        the answer, rounded to the points' dtype after noise was added; None if fewer than
        ``placement.min_replies`` parties replied.

    Raises:
        ValueError: ``ahead`` is the noise of another release, or exact noise of other stds.
        ArgumentError: see :meth:`~fedpriv.mechanism.correlated.NoiseRecursion.rounded`.
    """
    if ahead is not None and ahead.label != (SERVER, index):
        raise ValueError(f"noise drawn ahead for {ahead.label} cannot serve release {index}")
    if not placement.releases(replies):
        return None
    owed, dtype = query.noise_stds(noise_multiplier), query.points[0].dtype
    stds = placement.server_stds(owed, replies)
    if not any(stds):
        return tuple((total / denominator).to(dtype) for total in sums)
    # The steps must follow from public stds: the number of shares that the server adds is private.
    public = placement.party_stds(owed) or owed
    draws = ahead or _draws(query, stds, public, placement.exact, key, index, recursion)
    if isinstance(draws, Rounded):
        steps = _steps(query, public)
        if draws.scales != tuple(_scales(sums, stds, steps, query.blocks)):
            raise ValueError("noise drawn ahead for another std cannot serve this release")
        noisy = _added(sums, draws, steps)
    else:
        normals = draws.take() if recursion is None else recursion.following(draws.take())
        each = zip(sums, normals, stds, strict=True)
        noisy = tuple(total.double().add(z, alpha=std) for total, z, std in each)
    return tuple(total.div_(denominator).to(dtype) for total in noisy)


def choose_least(values: Tensor, sensitivity: float, noise_multiplier: float, key: Key, index: int) -> int:
    """The index of the smallest value after Laplace noise; its cost is a ``noisy-max`` event.

    Args:
        values: shape (k,), finite; another unit changes each by at most ``sensitivity``, and all in one
            direction.
        sensitivity: S > 0.
        noise_multiplier: z of the event; the noise has scale z S.
        key: the server's key.
        index: the release's number in the run.
    """
    scale = validation.non_negative("noise multiplier", noise_multiplier) * sensitivity
    noise = key.generator(CHOICE, index).laplace(size=len(values))
    return int((values.double().cpu() + scale * torch.from_numpy(noise)).argmin())
