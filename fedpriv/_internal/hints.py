"""What a person most likely meant by a setting that is refused.

The tables hold words of other libraries and of papers; misspellings need no row.

>>> of_key("lr", ["learning-rate", "rounds"])
"did you mean 'learning-rate'?"
>>> of_value("unit", "user", ["client", "example"])
"did you mean 'client'?"
>>> of_number("sampling-rate", "5%")
'write 0.05'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fedpriv._internal import validation

SEE_ALL = "see `fedpriv simulate --help`"

# Keys of other libraries, and the setting that does the same.
_KEYS = {
    "accountant": "accounting",
    "algorithm": "optimizer",
    "alpha": "dirichlet-alpha",
    "batch": "sampling-rate",
    "budget": "epsilon",
    "clip": "clip-norm",
    "clipping-norm": "clip-norm",
    "clipping-threshold": "clip-norm",
    "cuda": "device",
    "data": "dataset",
    "data-set": "dataset",
    "eps": "epsilon",
    "eta": "learning-rate",
    "fraction-fit": "sampling-rate",
    "gpu": "device",
    "gpus": "gpus-per-actor",
    "grad-clip": "clip-norm",
    "gradient-clip": "clip-norm",
    "iterations": "rounds",
    "l2-norm-clip": "clip-norm",
    "local-lr": "local-learning-rate",
    "lr": "learning-rate",
    "max-grad-norm": "clip-norm",
    "max-norm": "clip-norm",
    "method": "optimizer",
    "n": "clients",
    "net": "model",
    "network": "model",
    "noise-placement": "placement",
    "num-clients": "clients",
    "num-rounds": "rounds",
    "num-workers": "actors",
    "output": "out",
    "output-dir": "out",
    "privacy-budget": "epsilon",
    "privacy-unit": "unit",
    "q": "sampling-rate",
    "random-seed": "seed",
    "sample-rate": "sampling-rate",
    "secagg": "secure-aggregation",
    "server-lr": "learning-rate",
    "steps": "rounds",
    "target-delta": "delta",
    "target-eps": "epsilon",
    "target-epsilon": "epsilon",
    "trust-model": "placement",
    "users": "clients",
    "weight-decay": "regularisation",
    "workers": "actors",
}

# Keys of other libraries that no single setting replaces.
_EXPLAINED = {
    "batch-size": "the expected cohort is sampling-rate times clients: set sampling-rate; "
    "local-batch-size is that of local steps",
    "cohort-size": "the expected cohort is sampling-rate times clients: set sampling-rate",
    "clients-per-round": "the expected cohort is sampling-rate times clients: set sampling-rate",
    "epoch": "the length of a run is rounds; an epoch is 1 / sampling-rate rounds",
    "epochs": "the length of a run is rounds; an epoch is 1 / sampling-rate rounds",
    "local-epochs": "clients make local-steps steps of local-batch-size examples, with work=local-steps",
    "noise": "the noise follows from epsilon, delta, rounds and sampling-rate: set epsilon",
    "noise-multiplier": "the noise follows from epsilon, delta, rounds and sampling-rate: set epsilon; "
    "`fedpriv account` says which epsilon a noise multiplier gives",
    "noise-scale": "the noise follows from epsilon, delta, rounds and sampling-rate: set epsilon",
    "sigma": "the noise follows from epsilon, delta, rounds and sampling-rate: set epsilon",
}

# Values of other libraries and of papers, and ours, by key. Registered values have theirs in the registry.
_VALUES = {
    "device": {"gpu": "cuda", "nvidia": "cuda"},
    "engine": {"process": "in-process", "single": "in-process", "local": "in-process"},
    "partition": {
        "noniid": "dirichlet",
        "non-iid": "dirichlet",
        "label-skew": "dirichlet",
        "user": "natural",
    },
    "unit": {"record": "example", "sample": "example", "user": "client", "device": "client"},
    "work": {"fedavg": "local-steps", "fedsgd": "gradient", "sgd": "local-steps"},
}

_FEDAVG = "FedAvg is work=local-steps with optimizer=dp-sgd"
_NO_NOISE = "a smaller epsilon is more private; placement=none trains without privacy"


def of_key(key: str, known: Iterable[str]) -> str:
    """A hint for a key that is no setting: the setting that was meant, or where all of them are listed."""
    name = validation.normalised(key)
    if name in _EXPLAINED:
        return _EXPLAINED[name]
    if name in _KEYS:
        return validation.meant(_KEYS[name])
    return validation.near(key, known) or SEE_ALL


def of_value(key: str, value: Any, words: Iterable[str]) -> str:
    """A hint for a value that is none of the setting's words; empty where nothing is like it."""
    name = validation.normalised(value)
    if key == "optimizer" and name in ("fedavg", "dp-fedavg", "federated-averaging"):
        return _FEDAVG
    if word := _VALUES.get(key, {}).get(name):
        return validation.meant(word)
    return validation.near(value, words)


def of_number(key: str, value: Any) -> str:
    """A hint for a setting whose number is refused; empty where the refusal says it all."""
    if isinstance(value, str):
        return _of_text(value.strip())
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key == "epsilon" and number and value <= 0:
        return _NO_NOISE
    if key == "sampling-rate" and number and value > 1:
        return "it is the expected part of the units in a round: divide the cohort's size by their number"
    return ""


def _of_text(text: str) -> str:
    if re.fullmatch(r"\d+(\.\d+)?\s*%", text):
        return f"write {float(text.rstrip('% ')) / 100:g}"
    if re.fullmatch(r"\d{1,3}(,\d{3})+", text):
        return f"write {text.replace(',', '')}"
    if re.fullmatch(r"\d+,\d+", text):
        return f"write {text.replace(',', '.')}"
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKM])", text):
        return f"write {float(match[1]) * {'k': 1e3, 'K': 1e3, 'M': 1e6}[match[2]]:.0f}"
    return ""
