"""Training without federation, as in the papers' tables: one silo that holds the whole training set.

It is the baseline that a federated run is compared with, and the same run: the privacy unit is the example,
drawn by the same samplers and charged to the same ledger, and with the same seed it takes the steps that a
federation of silos takes under central noise. Who holds the data adds the noise.

Without noise and clipping (``placement=none``, ``clip-norm=inf``, and ``dp2-adaptive-clip-norm=inf`` or
``srm-difference-clip-norm=inf`` where there is a second clip norm) each optimizer is the method that it makes
private, on the same samples: dp-sgd is SGD, dp-adam Adam, dp-rmsprop RMSProp, dp2-rmsprop RMSProp with
delayed preconditioners, dp-srm STORM. These are the upper limits of the papers' tables.

>>> config = resolve({"dataset": "digits", "rounds": 20})
>>> config.units, config.unit, config.engine
(1437, 'example', 'in-process')
>>> resolve({"dataset": "digits", "clients": 10})
Traceback (most recent call last):
    ...
fedpriv.ArgumentError: clients is 10; it must be 1 without federation (leave it out, \
or use `fedpriv simulate`)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv._internal import validation
from fedpriv.config.builders import make_source
from fedpriv.config.schema import Config
from fedpriv.mechanism.placement import PLACEMENTS

SET = {
    "level": "aggregation",
    "unit": "example",
    "clients": 1,
    "partition": "one-example",
    "work": "gradient",
    "nodes-own-data": False,
    "engine": "in-process",
}
_SIZE = "examples-per-client"  # of the only silo: N


def resolve(values: Mapping[str, Any]) -> Config:
    """The configuration of centralised training with these settings.

    Args:
        values: settings by key. Those of ``SET`` may be left out; ``examples-per-client`` is N, the
            number of training examples used, and may be left out where the data set has an end.

    Raises:
        ArgumentError: a setting contradicts training without federation, or is none.
        DataError: the data is not there.
    """
    for key, only in SET.items():
        if key in values and values[key] != only:
            hint = "leave it out, or use `fedpriv simulate`"
            raise validation.fail(key, values[key], f"be {only} without federation", hint)
    config = Config.parse({**values, **SET})
    if PLACEMENTS[config.placement].at_parties:
        allowed = "be none or central without federation"
        raise validation.fail("placement", config.placement, allowed, "who holds the data adds the noise")
    return config.changed(examples_per_client=_examples(config, _SIZE in values))


def _examples(config: Config, given: bool) -> int:
    """N: what was asked for, else all that the data set has."""
    size = make_source(config).size
    if not given and size is None:
        allowed = f"be given for {config.dataset}, which has no end"
        raise validation.fail(_SIZE, config.examples_per_client, allowed, "it is N, the training examples")
    if given and size is not None and config.examples_per_client > size:
        allowed = f"be at most {size}, what {config.dataset} has"
        raise validation.fail(_SIZE, config.examples_per_client, allowed)
    return config.examples_per_client if given or size is None else size
