"""Runs whose own units are audited: by coins of some of them, or of canaries that are planted among them."""

from __future__ import annotations

from typing import Any

RUN: dict[str, Any] = {
    "clients": 400, "model": "logistic", "epsilon": 4.0, "rounds": 3, "sampling_rate": 0.2, "seed": 0,
    "engine": "in-process",
}  # fmt: skip
EVERYONE: dict[str, Any] = {**RUN, "sampler": "everyone", "sampling_rate": 1.0}
SILOS: dict[str, Any] = {**RUN, "unit": "example", "clients": 4, "examples_per_client": 100}
# Runs in which an audit finds nothing, by what is particular about them.
SOUND: dict[str, dict[str, Any]] = {
    "clients": RUN,
    "local, the server": {**RUN, "placement": "local", "sampler": "fixed-size"},
    "the client level": {**SILOS, "level": "client", "silo_steps": 2, "optimizer": "dp-adam"},
    "collusion": {**RUN, "placement": "distributed", "colluding_parties": 9, "view": "parties"},
    "several examples, local steps": {
        **RUN, "partition": "iid", "examples_per_client": 3, "work": "local-steps", "local_steps": 2,
    },
    "public examples": {**RUN, "optimizer": "adadps", "public_examples": 20},
    "two points": {**RUN, "optimizer": "dp-srm"},
    "gradients with an offset": {**RUN, "optimizer": "adaclip"},
    "an adaptive clip norm": {**RUN, "optimizer": "dp-sgd", "adaptive_quantile": 0.5},
}  # fmt: skip
