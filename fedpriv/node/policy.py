"""What a node's owner decides, whatever a run says: the settings of a node, and what it refuses by them.

>>> owns_data({"data-file": "silo.npz"}), misspelt({"epsilon_limit": 3})
(True, ['epsilon_limit'])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv._internal import user_code, validation
from fedpriv._internal.settings import by_key

OWNERS = ("data-file", "ledger-file", "epsilon-limit", "delta-limit")  # settings of a node that owns its data
FILES = ("relative-noise-file", "clip-norm-file")  # settings of a run that name files to read
SETTINGS = (*OWNERS, "data-folder", "accept-code", "accept-seed", "partition-id", "num-partitions")


def owns_data(node: Mapping[str, Any]) -> bool:
    """Whether a node of this configuration is one that owns its data."""
    return any(name in node for name in OWNERS)


def misspelt(node: Mapping[str, Any]) -> list[str]:
    """The keys of a node's configuration that nothing reads, in order."""
    return sorted(set(node) - set(SETTINGS))


class RefusedError(validation.FedprivError, ValueError):
    """A node does not answer: the ask is not what its own plan holds, or passes its owner's limit.

    The text is for the node's own log: it holds public numbers, and what the node's ledger adds up to.
    """


def as_taken(run: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration as a node takes it that may own its data.

    An owner answers for the file that they named, and whether a run is of such nodes the server does not
    decide; nor where this machine is read from: data sets lie in the owner's own ``data-folder``, by default
    where ``FEDPRIV_DATA`` says, and a run names no file to take noise or clip norms from, whose numbers its
    answers would tell. Nor does it decide what code runs here: what ``model``, ``dataset`` and ``optimizer``
    name as ``module:name`` the owner has to have named in ``accept-code``.

    Raises RefusedError where the node owns its data, and the run is not one of nodes that do, or names a
    file, or code that its owner does not accept; ArgumentError where the node's configuration has a key that
    nothing reads (a limit with a misspelt name would be none), or the run's has one twice.
    """
    for key in misspelt(node):
        validation.choice("a key of this node's --node-config", key, SETTINGS)
    taken = dict(run)
    if owns_data(node):
        taken = by_key(run)
        if taken.get("nodes-own-data") is not True:
            raise RefusedError("this node owns its data, and the run is not of such nodes (nodes-own-data)")
        taken["data-folder"] = node.get("data-folder", "")
        taken["initial-weights"] = ""  # the server reads it, and sends what it holds
        for key in FILES:
            if taken.get(key):
                raise RefusedError(
                    f"the run's {key} names a file; a node that owns its data reads none that a run names"
                )
        accepted = str(node.get("accept-code", "")).split()
        for key in ("model", "dataset", "loss", "optimizer"):
            if user_code.named(taken.get(key)) and taken[key] not in accepted:
                raise RefusedError(
                    f"the run's {key} is code, {taken[key]}; a node that owns its data runs it where its "
                    'owner says accept-code="' + str(taken[key]) + '"'
                )
    return taken
