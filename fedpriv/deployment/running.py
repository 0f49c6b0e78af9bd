"""Whether a party of a deployment runs now: its ports answer, or its node has contact with the server.

    python -m fedpriv.deployment.running FOLDER

says it of a party's folder, by the exit code and by a line for each thing that does not run. It imports
neither torch nor Flower: it is the health check of the image, which asks again and again.
``fedpriv deploy check --running FOLDER`` shows the same for people.
"""

from __future__ import annotations

import http.client
import ssl
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv._internal.files import expanded
from fedpriv.flower.intervals import CONTACT_LOST
from fedpriv.node.contact import read_contact
from fedpriv.node.paths import contact_path, ledger_path

_PATIENCE = 5.0  # seconds for an answer


@dataclass(frozen=True)
class Seen:
    """What was looked at, whether it runs, and what was seen."""

    subject: str
    runs: bool
    text: str


def look(folder: Path) -> Iterator[Seen]:
    """What runs of the party in this folder; nothing of an operator's does.

    Raises OSError, ValueError or KeyError for a folder whose files cannot be read.
    """
    facts = tomllib.loads((folder / "party.toml").read_text())
    if facts["party"] == "server":
        yield from _ports(folder, facts)
    elif "partition" in facts:
        yield _contact(folder)


def reachable(listen: str) -> str:
    """The address at which this machine reaches what listens at an address, which may stand for all."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen, listen)


def _ports(folder: Path, facts: Mapping[str, Any]) -> Iterator[Seen]:
    """Each port of the server answers, with a certificate of this deployment."""
    here = reachable(str(facts["listen"]))
    roots = folder / str(facts["root-certificates"])
    wanted = {
        "control-port": ("127.0.0.1", folder / "loopback-ca.crt"),
        "port": (here, roots),
        "operator-port": (here, roots),
    }
    for fact, (host, authority) in wanted.items():
        if fact in facts:
            fault = _fault(host, int(facts[fact]), authority)
            yield Seen(fact, not fault, f"{host}:{facts[fact]} {fault or 'answers'}")


def _fault(host: str, port: int, authority: Path) -> str:
    """What is wrong with what listens there; "" if it answers."""
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname = False  # nodes check the name; this machine calls itself otherwise
    connection = http.client.HTTPSConnection(host, port, timeout=_PATIENCE, context=context)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"does not answer ({getattr(error, 'strerror', None) or type(error).__name__})"
    finally:
        connection.close()
    return "" if status == http.client.OK else f"answers {status}"


def _contact(folder: Path) -> Seen:
    """The node has heard of its server, and asks it for messages unless it answers one."""
    node = tomllib.loads((folder / "policy.toml").read_text())["node"]
    times = read_contact(contact_path(folder / expanded(ledger_path(node))))
    if times is None:
        return Seen("contact", False, "the node does not run, or the server has not answered it yet")
    heard = time.time() - times.heard
    if abs(heard) > CONTACT_LOST:  # a time in the future is of a clock that was set back since
        return Seen("contact", False, f"the server last answered {heard:.0f} s ago")
    if times.asked is not None and time.time() - times.asked > CONTACT_LOST:
        text = f"the node has asked for no message for {time.time() - times.asked:.0f} s"
        return Seen("contact", False, text)
    return Seen("contact", True, f"the server answered {max(heard, 0):.0f} s ago")


def main() -> None:
    """The command of this module."""
    folder = Path(sys.argv[1])
    try:
        faults = [seen for seen in look(folder) if not seen.runs]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{folder} is no party's folder: {error}")
    for seen in faults:
        print(f"{seen.subject}: {seen.text}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
