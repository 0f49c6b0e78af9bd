"""The settings of a node, which its owner decides, and what the node refuses because of them.

>>> owns_data({"data-file": "silo.npz"}), misspelt({"epsilon_limit": 3})
(True, ['epsilon_limit'])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv._internal import user_code, validation
from fedpriv._internal.settings import Settings, by_key, joined, setting
from fedpriv.mechanism.query import Query, SumBlock

FILES = ("relative-noise-file", "clip-norm-file")  # settings of a run that name files


class PlaceSettings(Settings):
    """Which of a federation's nodes this is."""

    partition_id: int = setting(0, "the number of this node, from 0", ge=0)
    num_partitions: int = setting(0, "the number of nodes", ge=1)


class OwnedFiles(Settings):
    """The files of a node that owns its data."""

    data_file: str = setting("", "the data file; a message from the server cannot name another")
    ledger_file: str = setting("", "where the node's ledger is; by default beside the data file")
    ledger_anchor: str = setting(
        "", "a file in another folder that keeps the ledger's length and hash; an earlier ledger is refused"
    )
    audit_file: str = setting(
        "",
        "the file of the rows that the owner leaves out for an audit (`fedpriv audit --deployment`); with it "
        "the node answers audits alone, and notes its steps at level=client",
    )


class OwnerLimits(Settings):
    """What an owner allows all runs together, and each release."""

    epsilon_limit: float = setting(0.0, "the epsilon of all runs on this data together", gt=0)
    delta_limit: float = setting(0.0, "the delta of all runs on this data together", gt=0, lt=1)
    min_noise_multiplier: float = setting(
        0.0, "the least noise multiplier of the node's own noise; a release with less is refused", ge=0
    )
    max_clip_norm: float = setting(0.0, "the largest clip norm of a request for a sum", gt=0)


class Acceptances(Settings):
    """What a node accepts only where its owner says so."""

    accept_seed: bool = setting(False, "whether a run with a seed is accepted; its noise is predictable")
    accept_central: bool = setting(
        False,
        "whether runs are accepted in which the server adds the noise; the whole run is charged before the "
        "first answer, since a node cannot verify that noise",
    )


class PeerSettings(Settings):
    """What an owner decides about secure aggregation."""

    identity_key: str = setting("", "the file of this node's identity key, for secure aggregation")
    peer_keys: str = setting("", "the file of all nodes' public identity keys, a line a partition")
    min_parties: int = setting(
        0, "the least number of nodes in a secure sum; 0: more than two thirds of all", ge=0
    )
    colluding_peers: int = setting(
        1, "how many other nodes may work with the server: the noise of as many is not credited", ge=0
    )


class OtherSettings(Settings):
    """Settings that do not make a node the owner of its data."""

    data_folder: str = setting("", "the folder of data sets; by default FEDPRIV_DATA")
    accept_code: str = setting(
        "", "which module:name of a run's model, dataset, loss and optimizer may run, separated by blanks"
    )


NODE_CONFIG = joined(
    "NodeConfig",
    "All settings of --node-config.",
    PlaceSettings,
    OwnedFiles,
    PeerSettings,
    OtherSettings,
    OwnerLimits,
    Acceptances,
)
SETTINGS = tuple(NODE_CONFIG.fields())
OWNERS = (*OwnedFiles.fields(), *OwnerLimits.fields(), "accept-central")  # of nodes that own their data


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
    - Features of the data are computed anew: they are kept nowhere, whatever folder the run names.
    - A run may not name files with noise or clip norms, since answers would reveal the numbers in them.
    - A node with an ``audit-file`` answers audits alone (``audit``), and a node without one no audit.
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
        _require_audit(used, node)
        used["data-folder"] = node.get("data-folder", "")
        used["initial-weights"] = ""  # the server reads the file and sends its values
        used["features-folder"] = ""  # features are as private as the data, so no run names their place
        for key in FILES:
            if used.get(key):
                raise RefusedError(
                    f"the run's {key} names a file; a node that owns its data reads no file that a run names"
                )
        accepted = str(node.get("accept-code", "")).split()
        for key in user_code.SETTINGS:
            if user_code.named(used.get(key)) and used[key] not in accepted:
                raise RefusedError(
                    f"the run's {key} is code, {used[key]}; a node that owns its data runs it only if its "
                    f'owner sets accept-code="{used[key]}", or lists it in [code] of a policy'
                )
    return used


def _require_audit(run: Mapping[str, Any], node: Mapping[str, Any]) -> None:
    """Raises RefusedError unless the run is an audit where the node's owner wants one, and only there."""
    audit = run.get("audit") is True
    if audit and not node.get("audit-file"):
        raise RefusedError("the run is an audit; a node's owner allows audits by an audit-file")
    if not audit and node.get("audit-file"):
        raise RefusedError(
            "this node leaves out examples for an audit, so it answers audits alone; its owner takes "
            "audit-file out of its settings after the audit"
        )


def require_clip(query: Query, node: Mapping[str, Any]) -> None:
    """Raises RefusedError if a unit may weigh more in a requested sum than ``max-clip-norm``."""
    if "max-clip-norm" not in node:
        return
    most = validation.finite_positive("max-clip-norm", node["max-clip-norm"])
    asked = max((block.sensitivity for block in query.blocks if isinstance(block, SumBlock)), default=0.0)
    if not asked <= most * (1 + 1e-9):
        raise RefusedError(
            f"the request's clip norm is {asked:.4g}, above this node's max-clip-norm of {most:g}"
        )
