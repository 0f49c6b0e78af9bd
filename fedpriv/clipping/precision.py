"""The precision of a model's forward and backward passes.

Per-example norms, clip factors and sums are always float32 or better, so in every precision a unit adds at
most its clip norm. Only the gradients lose digits: ``tf32`` keeps 11 bits (on GPUs that have it; elsewhere
it is ``float32``), and ``bf16`` keeps 8 (autocast: matrix products and convolutions in bfloat16, losses and
other sensitive operations in float32).

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
    """Set the precision of matrix products and convolutions on ``device`` while the context is open."""
    if device.type != "cuda":
        # A device without autocast computes in float32 as it is; asked for bfloat16, it says so.
        low = precision == "bf16"
        if low or torch.amp.is_autocast_available(device.type):
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                yield
        else:
            yield
        return
    settings = _settings(precision == "tf32")
    before = [getattr(holder, name) for holder, name, _ in settings]
    for holder, name, value in settings:
        setattr(holder, name, value)
    try:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        for (holder, name, _), value in zip(settings, before, strict=True):
            setattr(holder, name, value)


def _settings(tf32: bool) -> list[tuple[Any, str, object]]:
    """(holder, attribute, value) of what decides whether float32 products on a GPU are rounded to tf32."""
    cudnn: Any = torch.backends.cudnn
    if not hasattr(cudnn, "conv"):  # torch before 2.9
        return [(torch.backends.cuda.matmul, "allow_tf32", tf32), (cudnn, "allow_tf32", tf32)]
    holders: list[Any] = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    return [(holder, "fp32_precision", "tf32" if tf32 else "ieee") for holder in holders]
