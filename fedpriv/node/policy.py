"""The settings of a node, which its owner decides, and what the node refuses because of them.

>>> owns_data({"data-file": "silo.npz"}), misspelt({"epsilon_limit": 3})
(True, ['epsilon_limit'])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv._internal import user_code, validation
from fedpriv._internal.settings import by_key

# Settings of nodes that own their data.
OWNERS = ("data-file", "ledger-file", "epsilon-limit", "delta-limit", "min-noise-multiplier")
FILES = ("relative-noise-file", "clip-norm-file")  # settings of a run that name files
SETTINGS = (*OWNERS, "data-folder", "accept-code", "accept-seed", "partition-id", "num-partitions")


def owns_data(node: Mapping[str, Any]) -> bool:
    """Whether a node with this configuration owns its data."""
    return any(name in node for name in OWNERS)


def misspelt(node: Mapping[str, Any]) -> list[str]:
    """The unknown keys of a node's configuration, sorted."""
    return sorted(set(node) - set(SETTINGS))


class RefusedError(validation.FedprivError, ValueError):
    """A node does not answer: the request differs from its own plan or exceeds its owner's limit.

    The text is for the node's own log. It contains public numbers and the share of the limit that is spent.
    """


def as_taken(run: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """The run's configuration as this node uses it.

    If the node owns its data, its owner decides what is read and run on this machine, not the server:

    - A run must declare that nodes own their data (``nodes-own-data``).
    - Data sets are read from the owner's ``data-folder``, by default the folder of ``FEDPRIV_DATA``.
    - A run may not name files with noise or clip norms, since answers would reveal the numbers in them.
    - Custom code that ``model``, ``dataset``, ``loss`` or ``optimizer`` names as ``module:name`` must be
      listed in ``accept-code``.

    Raises RefusedError if the run breaks one of these rules. Raises ArgumentError for an unknown key in the
    node's configuration (a misspelt limit would have no effect) and for a duplicate key in the run's.
    """
    for key in misspelt(node):
        validation.choice("a key of this node's --node-config", key, SETTINGS)
    used = dict(run)
    if owns_data(node):
        used = by_key(run)
        if used.get("nodes-own-data") is not True:
            raise RefusedError("this node owns its data, so the run must have nodes-own-data=true")
        used["data-folder"] = node.get("data-folder", "")
        used["initial-weights"] = ""  # the server reads the file and sends its values
        for key in FILES:
            if used.get(key):
                raise RefusedError(
                    f"the run's {key} names a file; a node that owns its data reads no file that a run names"
                )
        accepted = str(node.get("accept-code", "")).split()
        for key in ("model", "dataset", "loss", "optimizer"):
            if user_code.named(used.get(key)) and used[key] not in accepted:
                raise RefusedError(
                    f"the run's {key} is code, {used[key]}; a node that owns its data runs it only if its "
                    'owner sets accept-code="' + str(used[key]) + '"'
                )
    return used
