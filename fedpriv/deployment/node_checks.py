"""The looks of `fedpriv deploy check` at a node."""

from __future__ import annotations

import email.utils
import http.client
import math
import os
import ssl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedpriv._internal import user_code
from fedpriv._internal.files import quoted
from fedpriv._internal.validation import FedprivError
from fedpriv.config.builders import make_source
from fedpriv.config.schema import Config
from fedpriv.data import DataError, Source
from fedpriv.data.client_files import ClientFile
from fedpriv.deployment import checks, keys
from fedpriv.deployment.checks import FaultError, Look, State
from fedpriv.deployment.folders import SERVER, Party
from fedpriv.node.secure_parties import pinned
from fedpriv.node.setup import require_set_up
from fedpriv.node.status import status_of
from fedpriv.secure_aggregation.threshold import smallest_threshold

_PATIENCE = 10.0  # seconds for a connection
# The seconds by which a node's clock may be ahead of the server's, and behind it: Flower refuses the rest.
_AHEAD, _BEHIND, _NOTABLE = 5.0, 300.0, 3.0


def looks(node: Party, before_start: bool = False) -> Iterator[Look]:
    """What is looked at; ``before_start`` wants the ledger made."""
    yield "versions", lambda: checks.installed(node)
    yield "policy", lambda: _policy(node)
    yield "authority", lambda: checks.authority(node)
    yield "key", lambda: _key(node)
    yield "peers", lambda: _peers(node)
    yield "server", lambda: _server(node)
    yield "clock", lambda: _clock(node)
    yield "data", lambda: _data(node)
    yield "ledger", lambda: _ledger(node, before_start)


def _policy(node: Party) -> str:
    """The owner's policy is whole, for this place, and its code is the one that it names."""
    policy = node.policy
    place = policy["partition-id"], policy["num-partitions"]
    if place != (node.facts["partition"], node.nodes):
        text = f"policy.toml says partition {place[0]} of {place[1]}"
        raise FaultError(text, f"the key is enrolled for partition {node.facts['partition']} of {node.nodes}")
    policy.require_code()
    if math.isinf(_used(node)):
        remedy = "raise epsilon-limit, or leave the node out: `fedpriv node status` shows the charges"
        raise FaultError(f"earlier runs exceed epsilon-limit {policy['epsilon-limit']:g}", remedy)
    limits = policy["run-epsilon"], policy["epsilon-limit"], policy["delta-limit"]
    return "epsilon {:g} a run, {:g} in all (delta {:g})".format(*limits)


def _used(node: Party) -> float:
    """The share of the owner's limit that earlier runs used; 0 without a ledger, at which another looks."""
    if not node.policy.ledger.exists():
        return 0.0
    try:
        return status_of(node.policy).spent
    except FedprivError:
        return 0.0  # the look at the ledger says why


def _peers(node: Party) -> str:
    """The keys for secure aggregation fit the node's place."""
    policy = node.policy
    if not policy["identity-key"] and not policy["peer-keys"]:
        return "no keys for secure aggregation"
    checks.private(Path(policy["identity-key"]))
    least, _, peers = pinned(policy.node_config, smallest_threshold(node.nodes), node.nodes)
    return f"{len(peers)} identity keys; at least {least} nodes in a secure sum"


def _key(node: Party) -> str:
    path = Path(node.policy["private-key"])
    line = keys.read_node_private(path)
    checks.private(path)
    beside = node.folder / "node.key.pub"
    if beside.is_file() and keys.read_node_public(beside) != line:
        raise FaultError(
            f"{path} is not the private half of {beside.name}", "put the two that belong together"
        )
    return keys.fingerprint(line)


def _answered(node: Party) -> http.client.HTTPResponse:
    """The server's answer over a connection that was checked as the node will check it."""
    host, port = node.server_address
    context = ssl.create_default_context(cafile=str(node.roots))
    connection = http.client.HTTPSConnection(host, port, timeout=_PATIENCE, context=context)
    try:
        connection.request("GET", "/health")
        return connection.getresponse()
    except ssl.SSLCertVerificationError as error:
        text = f"the server at {host}:{port} has a wrong certificate: {error.verify_message}"
        raise FaultError(
            text, "do not connect: ask the server's operator for its ca.crt and its name"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        text = f"{host}:{port} cannot be reached ({why})"
        remedy = "start the server; let this machine out to that port in the firewall"
        # Where the whole deployment is in one folder, its server may be started after this look.
        beside = isinstance(error, ConnectionRefusedError) and (node.folder.parent / SERVER).is_dir()
        raise FaultError(text, remedy, State.NOTE if beside else State.WRONG) from None
    finally:
        connection.close()


def _server(node: Party) -> str:
    host, port = node.server_address
    status = _answered(node).status
    if status != http.client.OK:
        raise FaultError(f"{host}:{port} answers {status}", "is this the address of the deployment's proxy?")
    return f"{host}:{port} answers, with the right certificate"


def _clock(node: Party) -> str:
    try:
        stated = _answered(node).getheader("Date")
    except FaultError as fault:
        raise FaultError("is compared when the server answers", fault.remedy, State.NOTE) from None
    if stated is None:
        raise FaultError("the server states no time", "compare the clocks yourself", State.NOTE)
    ahead = time.time() - email.utils.parsedate_to_datetime(stated).timestamp() - 0.5  # whole seconds
    text = f"this clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    if not -_BEHIND < ahead < _AHEAD:
        raise FaultError(text, "set the clocks by NTP: Flower refuses messages whose time is wrong")
    if abs(ahead) > _NOTABLE:
        raise FaultError(text, "set the clocks by NTP", State.NOTE)
    return "agrees with the server's"


def _data(node: Party) -> str:
    """The data file can be read; what is in it is not printed."""
    path = Path(node.policy["data-file"])
    if not path.is_file():
        remedy = "put the owner's examples there, or correct data-file in policy.toml"
        raise FaultError(f"{path} is not there", remedy)
    if path.suffix != ".npz":
        with path.open("rb"):
            return f"{path} can be read"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if missing := {"x", "y"} - set(arrays.files):
                text = f"{path} has no array {' and no array '.join(sorted(missing))}"
                raise FaultError(text, "docs/guides/deploy.md says what the file holds")
    except (OSError, ValueError) as error:
        text = f"{path} cannot be read as a NumPy archive ({type(error).__name__})"
        raise FaultError(text, "write it with numpy.savez, without pickled objects") from None
    if (like := _data_set(node)) is None:
        return f"{path} can be read"
    try:
        ClientFile(path, like)
    except DataError as error:
        raise FaultError(
            str(error), f"write examples as {like.name} has them: docs/guides/deploy.md"
        ) from None
    return f"{path} can be read, as examples of {like.name}"


def _data_set(node: Party) -> Source | None:
    """The data set of all runs that the policy allows; None where it is not one, or not at hand."""
    names = node.policy.allow.get("dataset", ())
    if len(names) != 1 or user_code.named(names[0]):
        return None
    try:
        return make_source(Config.parse({"dataset": names[0], "data-folder": node.policy["data-folder"]}))
    except DataError:
        return None


def _ledger(node: Party, before_start: bool) -> str:
    """The ledger and its anchor are there, whole and writable."""
    policy = node.policy
    for path in (policy.ledger, policy.anchor):
        if path.exists() or path.parent.exists():
            _require_writable(path)
    made = f"`fedpriv node init {quoted(policy.path)}` makes it, once"
    if not policy.ledger.exists() and not policy.anchor.exists():
        state = State.WRONG if before_start else State.NOTE
        raise FaultError(f"{policy.ledger} is not made yet", made, state)
    require_set_up(policy)
    return f"{policy.ledger} is whole and can be written"


def _require_writable(path: Path) -> None:
    remedy = "a node answers only what it has charged: let its user write there, and keep the file for good"
    try:
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(b"\0")
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            with path.open("ab"):
                pass
    except OSError as error:
        raise FaultError(f"{path} cannot be written ({error.strerror})", remedy) from None
