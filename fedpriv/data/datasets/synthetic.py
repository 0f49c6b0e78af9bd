"""synthetic(1, 1): devices that differ in their inputs and in their labels' rule, made on the spot.

Li et al. 2020 ("Federated optimization in heterogeneous networks", section 5.1 and appendix C.1) draw for
device k

    u_k ~ N(0, alpha),  W_k and b_k ~ N(u_k, 1);   B_k ~ N(0, beta),  v_k ~ N(B_k, 1);
    x ~ N(v_k, Sigma) with Sigma_jj = j^(-1.2), j = 1..60;   y = argmax(softmax(W_k x + b_k)), 10 labels

with alpha = beta = 1 here. Sizes are 50 + floor(lognormal(4, 2)), as in the authors' published code, here cut
at 500, so that no device has most of the data. The paper has 30 devices; the setting ``devices`` makes more.
Each device is drawn from a public seed and its number alone. The last tenth of its examples is public.

>>> source = read(devices=3)
>>> source.shape, source.classes, sorted(set(source.owners.tolist()))
((60,), 10, [0, 1, 2])
"""

from __future__ import annotations

from fedpriv._internal.lazy import numpy as np
from fedpriv._internal.settings import Settings
from fedpriv.data.arrays import Arrays
from fedpriv.data.registry import no_files, option, register
from fedpriv.data.source import Indices

FEATURES, LABELS, DEVICES = 60, 10, 30
_SEED, _LEAST, _MOST, _PUBLIC = 2020, 50, 500, 10


def device(number: int) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float32]], Indices]:
    """The examples of a device: x float32 (n, 60) and labels (n,)."""
    generator = np.random.default_rng([_SEED, number])
    size = min(_LEAST + int(generator.lognormal(4, 2)), _MOST)
    u, centre = generator.normal(), generator.normal()
    weights, bias = generator.normal(u, 1, (FEATURES, LABELS)), generator.normal(u, 1, LABELS)
    mean, stds = generator.normal(centre, 1, FEATURES), np.arange(1, FEATURES + 1) ** -0.6
    x = mean + generator.normal(size=(size, FEATURES)) * stds
    return x.astype(np.float32), (x @ weights + bias).argmax(1)


def read(found: None = None, devices: int = DEVICES) -> Arrays:
    """The source over so many devices. A client is a device."""
    made = [device(number) for number in range(devices)]
    kept = [len(y) - len(y) // _PUBLIC for _, y in made]
    pairs = list(zip(made, kept, strict=True))
    return Arrays(
        "synthetic-1-1",
        np.concatenate([x[:size] for (x, _), size in pairs]),
        np.concatenate([y[:size] for (_, y), size in pairs]),
        np.concatenate([x[size:] for (x, _), size in pairs]),
        np.concatenate([y[size:] for (_, y), size in pairs]),
        classes=LABELS,
        owners=np.repeat(np.arange(devices), kept),
    )


class DeviceSettings(Settings):
    """Settings of data sets that are made for a number of devices."""

    devices: int = option("devices", "the number of devices that data is made for", at_least=1)


register("synthetic-1-1", no_files, read, {"devices": DEVICES}, DeviceSettings)
