"""What goes around any optimizer: an adaptive clip norm, per-layer clipping, a regulariser, averaging."""

from __future__ import annotations

import math

from fedpriv._internal import validation
from fedpriv.optimizers.adaptive_clipping import AdaptiveClipping
from fedpriv.optimizers.automatic_clipping import AutomaticClipping
from fedpriv.optimizers.averaging import ExponentialMovingAverage
from fedpriv.optimizers.base import OptimizerWrapper, PrivateOptimizer
from fedpriv.optimizers.per_layer import PerLayer
from fedpriv.optimizers.registry import BuildContext, Method
from fedpriv.optimizers.regularised import L2, Nonconvex, Regularised


def wrapped(optimizer: PrivateOptimizer, context: BuildContext) -> PrivateOptimizer:
    """The optimizer inside the wrappers that are configured."""
    common = context.common
    if common.adaptive_quantile:
        adaptive = (common.adaptive_quantile, common.adaptive_step, common.adaptive_share)
        optimizer = AdaptiveClipping(optimizer, *adaptive)
    if common.clipping == "per-layer":
        optimizer = PerLayer(optimizer)
    if common.clipping == "automatic":
        optimizer = AutomaticClipping(optimizer, common.clip_gamma)
    if common.regulariser != "none":
        kind = L2 if common.regulariser == "l2" else Nonconvex
        optimizer = Regularised(optimizer, kind(common.regularisation))
    return ExponentialMovingAverage(optimizer, common.averaging) if common.averaging else optimizer


def unwrapped(optimizer: PrivateOptimizer) -> PrivateOptimizer:
    """The optimizer without the wrappers around it."""
    while isinstance(optimizer, OptimizerWrapper):
        optimizer = optimizer.inner
    return optimizer


def check(method: Method, context: BuildContext) -> None:
    """Refuse wrappers that do not go together, or not with the method or the run. Raises ArgumentError."""
    common = context.common
    if common.adaptive_quantile:
        if method.adaptive_clipping:
            allowed = f"be 0 with {method.name}"
            hint = method.adaptive_clipping
            raise validation.fail("adaptive-quantile", common.adaptive_quantile, allowed, hint)
        if math.isinf(common.clip_norm):
            allowed = "be finite where it adapts: it is where C starts"
            raise validation.fail("clip-norm", common.clip_norm, allowed)
        if common.clipping != "flat":
            raise validation.fail("clipping", common.clipping, "be flat where the clip norm adapts")
    if common.clipping == "automatic" and math.isinf(common.clip_norm):
        raise validation.fail("clip-norm", common.clip_norm, "be finite with clipping automatic")
    if common.regulariser != "none" and context.local_steps:
        raise validation.fail("regulariser", common.regulariser, "be none with work local-steps")
    if common.regulariser != "none" and method.regularisers:
        allowed = f"be none with optimizer {method.name}"
        raise validation.fail("regulariser", common.regulariser, allowed, method.regularisers)
    if common.averaging < 0:
        raise validation.fail("averaging", common.averaging, "be at least 0 and below 1, or -1")
    if common.averaging and context.by_silo:
        raise validation.fail("averaging", common.averaging, "be 0 with level client")
