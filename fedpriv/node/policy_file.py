"""A node's policy: a TOML file in which the data's owner says what the node may answer.

``fedpriv node`` runs the installed package and no code of a run, so a run is accepted as a configuration
alone. :meth:`Policy.check` holds it against the file. Four tables:

- ``[node]``: where the server, the keys and the data are (:class:`ConnectionSettings` and the settings of
  every node's files and place).
- ``[limits]``: epsilon of a run and of all runs, the least noise, the largest clip norm. None has a default.
- ``[allow]``: for settings of a run, the values that are allowed. ``dataset``, ``model``, ``optimizer``,
  ``placement`` and ``unit`` are required; any other text setting of a run may be added. ``app-hashes`` may
  list the SHA-256 hashes of the app bundles that are allowed.
- ``[code]``: the owner's own code, each ``module:name`` with the SHA-256 hash of the module's file in
  ``code-folder``.

Paths are relative to the folder of the policy file.
"""

from __future__ import annotations

import hashlib
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv._internal import hints, user_code, validation
from fedpriv._internal.files import expanded
from fedpriv._internal.settings import Settings, joined, setting
from fedpriv.config.schema import Config
from fedpriv.mechanism.placement import PLACEMENTS
from fedpriv.node.paths import contact_path, ledger_path
from fedpriv.node.policy import (
    SETTINGS,
    Acceptances,
    OtherSettings,
    OwnedFiles,
    OwnerLimits,
    PeerSettings,
    PlaceSettings,
    RefusedError,
    as_taken,
)


class ConnectionSettings(Settings):
    """How the node reaches the SuperLink, and what only ``fedpriv node`` reads."""

    superlink: str = setting("", "the SuperLink's address, HOST:PORT")
    root_certificates: str = setting("", "the CA's certificate of the SuperLink (PEM)")
    private_key: str = setting("", "the node's private key (ECDSA, in OpenSSH's format)")
    insecure: bool = setting(False, "whether to connect without TLS; for trials on one machine")
    code_folder: str = setting("", "the folder of the owner's own modules")
    journal_file: str = setting("", "where answers and refusals are noted; by default beside the ledger")


class RunLimits(Settings):
    """What one run may spend."""

    run_epsilon: float = setting(0.0, "the largest epsilon of one run", gt=0)
    max_releases: int = setting(100_000, "the most releases of one run, which a node plans in memory", ge=1)


NODE = joined(
    "NodeTable",
    "The table [node].",
    ConnectionSettings,
    PlaceSettings,
    OwnedFiles,
    PeerSettings,
    OtherSettings,
)
LIMITS = joined("LimitsTable", "The table [limits].", RunLimits, OwnerLimits, Acceptances)

_PATHS = (
    "root-certificates",
    "private-key",
    "code-folder",
    "journal-file",
    *OwnedFiles.fields(),
    "data-folder",
    "identity-key",
    "peer-keys",
)
_REQUIRED = {
    "node": ("superlink", "partition-id", "num-partitions", "data-file"),
    "limits": ("run-epsilon", *OwnerLimits.fields()),
    "allow": ("dataset", "model", "optimizer", "placement", "unit"),
}
_HASHES = "app-hashes"
_DIGITS = 64  # of a SHA-256 hash in hex


@dataclass(frozen=True)
class Policy:
    """What a node's owner decided.

    Attributes:
        path: the file.
        node: the table ``[node]``, with absolute paths.
        limits: the table ``[limits]``.
        allow: the allowed values of settings of a run, by key.
        app_hashes: the allowed hashes of app bundles; empty: any, since none of their code is run.
        code: {module:name: the hash of its file}.
    """

    path: Path
    node: Settings
    limits: Settings
    allow: Mapping[str, tuple[str, ...]]
    app_hashes: tuple[str, ...]
    code: Mapping[str, str]

    def __getitem__(self, key: str) -> Any:
        """A setting of ``[node]`` or ``[limits]``."""
        return {**self.node.table(), **self.limits.table()}[key]

    @property
    def unit(self) -> str:
        """The privacy unit of the node's ledger."""
        return self.allow["unit"][0]

    @property
    def ledger(self) -> Path:
        """The ledger's path."""
        return ledger_path(self.node_config)

    @property
    def anchor(self) -> Path:
        """The file that keeps the ledger's head: beside the key, or as the policy says."""
        if self["ledger-anchor"]:
            return Path(self["ledger-anchor"])
        beside = Path(self["private-key"] or self.path)
        return beside.with_name(f"{beside.name}.ledger-head")

    @property
    def journal(self) -> Path:
        """Where answers and refusals are noted."""
        return Path(self["journal-file"] or f"{self.ledger}.journal")

    @property
    def contact(self) -> Path:
        """Where the node says when it last had contact with its server."""
        return contact_path(self.ledger)

    @property
    def node_config(self) -> dict[str, Any]:
        """The policy as the configuration of a node (:data:`fedpriv.node.policy.SETTINGS`)."""
        config = {key: self[key] for key in SETTINGS}
        config = {key: value for key, value in config.items() if value != "" and value is not False}
        if self.code:
            config["accept-code"] = " ".join(self.code)
        return config | {"ledger-anchor": str(self.anchor)}

    def check(self, run: Mapping[str, Any], app_hash: str = "") -> None:
        """Raises RefusedError, or ArgumentError for a run that cannot be, unless the policy allows the run.

        Args:
            run: the run's flat configuration.
            app_hash: the SHA-256 hash of its app bundle.
        """
        if self.app_hashes and app_hash not in self.app_hashes:
            raise RefusedError(
                f"the run's app has the hash {app_hash or 'unknown'}, which app-hashes does not list"
            )
        taken = as_taken(run, self.node_config)  # first: parsing may import an optimizer
        self.require_code()
        config = Config.parse(taken).resolved()
        table = config.table()
        for key, allowed in self.allow.items():
            if table[key] not in allowed:
                raise RefusedError(
                    f"the run's {key} is {table[key]}; this node's policy allows {', '.join(allowed)}"
                )
        most = (
            ("epsilon", config.epsilon, "run-epsilon"),
            ("delta", config.delta, "delta-limit"),
            ("number of releases", config.rounds * config.silo_steps, "max-releases"),
        )
        clips = tuple((key, table[key], "max-clip-norm") for key in config.method.clip_norms if key in table)
        for key, value, limit in (*most, *clips):
            if not value <= self[limit]:
                raise RefusedError(
                    f"the run's {key} is {value:g}; this node's policy allows {limit} {self[limit]:g} at most"
                )
        if config.seed >= 0 and not self["accept-seed"]:
            raise RefusedError("the run has a seed, so its noise is predictable; accept-seed is false")

    def require_code(self) -> None:
        """Raises RefusedError unless the owner's modules are those of the policy, in its code-folder."""
        for reference, digest in self.code.items():
            path = self._module(reference)
            if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                raise RefusedError(
                    f"{path}, the code of {reference}, is not the file whose hash the policy has"
                )
            loaded = getattr(sys.modules.get(reference.partition(":")[0]), "__file__", None)
            if loaded is not None and Path(loaded).resolve() != path.resolve():
                raise RefusedError(f"the module of {reference} is {loaded}, not {path}")

    def find_code(self) -> None:
        """Has Python look for the owner's modules in the code-folder, before all other folders."""
        if self.code and self["code-folder"] not in sys.path:
            sys.path.insert(0, self["code-folder"])

    def _module(self, reference: str) -> Path:
        module = reference.partition(":")[0]
        return Path(self["code-folder"], *module.split(".")).with_suffix(".py")


def read_policy(path: str | Path) -> Policy:
    """The policy in a file. Raises ArgumentError, which names the file, on the first thing wrong."""
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise validation.ArgumentError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise validation.ArgumentError(f"{path} is no TOML file: {error}") from None
    try:
        return _parsed(path.absolute(), tables)
    except validation.ArgumentError as error:
        raise validation.ArgumentError(f"{path}: {error}") from None


def _parsed(path: Path, tables: Mapping[str, Any]) -> Policy:
    for name, table in tables.items():
        validation.choice("a table of the policy", name, ("node", "limits", "allow", "code"))
        if not isinstance(table, dict):
            raise validation.fail(name, table, f"be a table, [{name}]")
    node = _read(NODE, "node", _absolute(path.parent, tables.get("node", {})))
    limits = _read(LIMITS, "limits", tables.get("limits", {}))
    for name, keys in _REQUIRED.items():
        for key in keys:
            if key not in tables.get(name, {}):
                raise validation.ArgumentError(f"[{name}] has no {key}, which has no default")
    allow = {key: _values(key, values) for key, values in tables["allow"].items()}
    hashes = allow.pop(_HASHES, ())
    code = {str(name): str(digest) for name, digest in tables.get("code", {}).items()}
    policy = Policy(path, node, limits, allow, hashes, code)
    _check_connection(policy)
    _check_allow(policy)
    _check_code(policy)
    return policy


def _absolute(folder: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with its paths made absolute; ``~`` is the user's home."""
    paths = {
        key: str(folder / expanded(table[key]))
        for key in _PATHS
        if isinstance(table.get(key), str) and table[key]
    }
    return {**table, **paths}


def _read(group: type[Settings], name: str, table: Mapping[str, Any]) -> Settings:
    for key in table:
        if key not in group.fields():
            raise validation.ArgumentError(
                f"[{name}] has an unknown key {key!r}; {hints.of_key(key, group.fields())}"
            )
    return group.read(table)


def _values(key: str, values: Any) -> tuple[str, ...]:
    words = values if isinstance(values, list) else [values]
    if not words and key != _HASHES:
        raise validation.fail(key, values, "allow at least one value")
    if not all(isinstance(word, str) for word in words):
        raise validation.fail(key, values, 'be a list of texts, such as ["logistic"]')
    return tuple(words)


def _check_connection(policy: Policy) -> None:
    host, _, port = str(policy["superlink"]).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise validation.fail("superlink", policy["superlink"], "be HOST:PORT, such as server.example:9092")
    if not 0 <= policy["partition-id"] < policy["num-partitions"]:
        raise validation.fail("partition-id", policy["partition-id"], "be less than num-partitions")
    if policy["insecure"] == bool(policy["root-certificates"]):
        raise validation.ArgumentError(
            "[node] must have root-certificates, for TLS, or insecure = true, for trials on one machine"
        )
    if policy["insecure"] and policy["private-key"]:
        raise validation.fail("insecure", True, "be false with a private-key", "keys need TLS")
    if policy["accept-code"]:
        raise validation.ArgumentError("accept-code is no key of a policy; list code with its hash in [code]")
    if policy.anchor.parent.resolve() == policy.ledger.parent.resolve():
        raise validation.fail(
            "ledger-anchor",
            str(policy.anchor),
            "lie in another folder than the ledger",
            "whoever puts back the one folder would put back both",
        )


def _check_allow(policy: Policy) -> None:
    if policy["run-epsilon"] > policy["epsilon-limit"]:
        allowed = f"be at most epsilon-limit, {policy['epsilon-limit']:g}"
        raise validation.fail("run-epsilon", policy["run-epsilon"], allowed, "no run could spend it")
    fields = Config.fields()
    for key, values in policy.allow.items():
        if key not in fields or fields[key].annotation not in (str, *_literals(fields)):
            hint = hints.of_key(key, fields) if key not in fields else "numbers have their own limits"
            raise validation.ArgumentError(f"[allow] has the key {key!r}, which is no text setting; {hint}")
        for value in values:
            if user_code.named(value):
                if value not in policy.code:
                    raise validation.fail(key, value, "be listed in [code] with the hash of its file")
            else:
                Config.parse({key: value})
    if len(policy.allow["unit"]) != 1:
        raise validation.fail("unit", list(policy.allow["unit"]), "be one value", "a ledger counts one unit")
    for value in policy.allow["placement"]:
        if not PLACEMENTS[value].adds_noise:
            raise validation.fail("placement", value, "add noise", "a run without noise protects nobody")


def _literals(fields: Mapping[str, Any]) -> Iterator[Any]:
    return (field.annotation for field in fields.values() if getattr(field.annotation, "__args__", None))


def _check_code(policy: Policy) -> None:
    for digest in (*policy.app_hashes, *policy.code.values()):
        if len(digest) != _DIGITS or not set(digest) <= set("0123456789abcdef"):
            raise validation.fail("a hash", digest, "be 64 hexadecimal digits", "sha256sum FILE prints it")
    if not policy.code:
        return
    if not policy["code-folder"]:
        raise validation.ArgumentError("[code] lists code, so [node] must have the code-folder that it is in")
    try:
        policy.require_code()
    except RefusedError as error:
        raise validation.ArgumentError(str(error)) from None
