"""In which precision a model's forward and backward pass are taken.

Only the passes are: per-example norms, clip factors and sums are float32 or better of whatever gradients
the passes gave, so a unit adds at most its clip norm in every precision. What is lost is digits of the
gradients, 11 bits of which are kept by ``tf32`` (on GPUs that have it; elsewhere it is ``float32``) and 8 by
``bf16`` (autocast: matrix products and convolutions in bfloat16, losses and what is delicate in float32).

>>> with computing("bf16", torch.device("cpu")):
...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
torch.bfloat16
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Precision = Literal["float32", "tf32", "bf16"]


@contextmanager
def computing(precision: Precision, device: torch.device) -> Iterator[None]:
    """The precision of matrix products and convolutions on ``device`` while the context is open."""
    if device.type != "cuda":
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            yield
        return
    cudnn: Any = torch.backends.cudnn
    settings: list[Any] = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    before = [setting.fp32_precision for setting in settings]
    for setting in settings:
        setting.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value
