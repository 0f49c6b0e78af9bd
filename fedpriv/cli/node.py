"""``fedpriv node init | run | policy | status | identity``."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpriv._internal import validation
from fedpriv.cli.app import AsJson, node_app, print_table, refusing, say

if TYPE_CHECKING:
    from fedpriv.node.policy_file import Policy
    from fedpriv.node.status import Status

_GRACE = 10.0  # seconds from the wish to stop until a node that waits for its server is ended

PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="The owner's policy, a TOML file.")]

_RUN_HELP = """Answer a SuperLink's runs under the owner's policy, with the installed fedpriv alone.

The process speaks to the SuperLink as a SuperNode does, but executes no code of a run: a run is accepted as a
configuration that the policy allows, or refused. It stays warm from message to message. Ctrl-C or SIGTERM
ends it after the message that it is answering, or after ten seconds while its server does not answer.

\b
Example:
  fedpriv node init policy.toml    # once
  fedpriv node run policy.toml
"""


@node_app.command("init", help="Make a node's ledger and its anchor, once, before its first run.")
def node_init(policy: PolicyFile) -> None:
    from fedpriv.node.policy_file import read_policy
    from fedpriv.node.setup import set_up

    with refusing():
        owner = read_policy(policy)
        events = set_up(owner)
    say(f"ledger {owner.ledger}, with {events} events; its length and hash are kept in {owner.anchor} too")


@node_app.command(
    "identity", help="Make this node's identity key for secure aggregation, and print its public half."
)
def node_identity(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new file of the secret key.")],
) -> None:
    from fedpriv.node.secure_parties import make_identity

    with refusing():
        public = make_identity(file)
    typer.echo(public)


@node_app.command("policy", help="Check a policy file, and show what it allows.")
def node_policy(policy: PolicyFile, as_json: AsJson = False) -> None:
    from fedpriv.node.policy_file import read_policy

    with refusing():
        owner = read_policy(policy)
    if as_json:
        typer.echo(json.dumps(_policy_data(owner)))
        return
    for table, values in _policy_data(owner).items():
        if isinstance(values, dict):
            rows = [[key, ", ".join(v) if isinstance(v, list) else str(v)] for key, v in values.items()]
            print_table((f"[{table}]", ""), [row for row in rows if row[1]])
        else:
            say(f"{table}: {values}")


def _policy_data(policy: Policy) -> dict[str, Any]:
    return {
        "policy": str(policy.path),
        "node": policy.node.table(),
        "limits": policy.limits.table(),
        "allow": {key: list(values) for key, values in policy.allow.items()},
        "app-hashes": ", ".join(policy.app_hashes) or "any (no code of an app is run)",
        "code": dict(policy.code),
        "ledger": str(policy.ledger),
        "ledger's anchor": str(policy.anchor),
        "journal": str(policy.journal),
    }


@node_app.command("run", help=_RUN_HELP, short_help="Answer a SuperLink's runs under the owner's policy.")
def node_run(
    policy: PolicyFile,
    json_logs: Annotated[
        bool, typer.Option("--json-logs", help="Print one JSON line for each event, instead of sentences.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Give public values at http://127.0.0.1:PORT/metrics, for Prometheus [default: off].",
            show_default=False,
        ),
    ] = None,
) -> None:
    from fedpriv.node.journal import Journal
    from fedpriv.node.metrics import serving
    from fedpriv.node.policy_file import read_policy
    from fedpriv.node.setup import require_set_up
    from fedpriv.node.status import prometheus, status_of

    with refusing(), ExitStack() as stack:
        owner = read_policy(policy)
        require_set_up(owner)
        if not Path(owner["data-file"]).is_file():
            raise validation.fail("data-file", owner["data-file"], "be an existing file")
        owner.find_code()
        if metrics_port is not None:
            stack.enter_context(serving(metrics_port, lambda: prometheus(status_of(owner))))
        journal = Journal(owner.journal, _printer(owner, json_logs))
        with refusing(code=1):
            _serve(owner, journal)


def _serve(policy: Policy, journal: Any) -> None:
    """Connects, answers until asked to stop, and notes both ends."""
    from fedpriv.flower.owner_node import OwnerNode
    from fedpriv.flower.supernode import connected
    from fedpriv.node.contact import Contact

    keys = policy["root-certificates"], policy["private-key"]
    node: OwnerNode | None = None
    stopping = _stopping(lambda: node is not None and node.computes)
    with stopping as stopped, closing(Contact(policy.contact)) as contact:
        with connected(policy["superlink"], *keys, contact.heard) as link:
            journal.note("ready", node=str(link.node), superlink=policy["superlink"])
            node = OwnerNode(policy, link, journal, contact)
            node.serve(stopped)
        journal.note("stopped")


def _printer(policy: Policy, as_json: bool) -> Callable[[dict[str, Any]], None]:
    from fedpriv.node.journal import shareable

    def show(line: dict[str, Any]) -> None:
        if not as_json:
            fields = [f"{key} {value}" for key, value in line.items() if key not in ("time", "event", "why")]
            text = f"{line['time']} {line['event']}: {', '.join(fields)}"
            typer.echo(text.removesuffix(": ") + (f": {line['why']}" if "why" in line else ""))
        elif (shown := shareable(line, policy.unit)) is not None:
            typer.echo(json.dumps(shown))

    return show


@contextmanager
def _stopping(busy: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    """Yields whether SIGINT or SIGTERM asked the process to stop; a second one ends it at once.

    Flower asks a server that is gone again and again, and does not look. So the process ends also if it has
    not stopped some seconds after the first one, unless it is ``busy``, and then when it no longer is.
    """
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        for one, handler in previous.items():
            signal.signal(one, handler)
        signal.setitimer(signal.ITIMER_REAL, _GRACE, _GRACE)

    def end(number: int, frame: object) -> None:
        if not busy():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)

    previous = {one: signal.signal(one, ask) for one in (signal.SIGINT, signal.SIGTERM)}
    alarm = signal.signal(signal.SIGALRM, end)
    try:
        yield lambda: asked
    finally:
        if asked:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for one, handler in {**previous, signal.SIGALRM: alarm}.items():
            signal.signal(one, handler)


@node_app.command("status", help="Show a node's runs, what they spent, and what it refused and why.")
def node_status(policy: PolicyFile, as_json: AsJson = False) -> None:
    from fedpriv.node.policy_file import read_policy
    from fedpriv.node.status import status_of

    with refusing():
        status = status_of(read_policy(policy))
    if as_json:
        typer.echo(json.dumps(status.to_json()))
        return
    _print_status(status)


_SHOWN = 10  # refusals


def _print_status(status: Status) -> None:
    policy = status.policy
    limit = f"the limit of epsilon {policy['epsilon-limit']:g} (delta {policy['delta-limit']:g})"
    if math.isinf(status.spent):
        say(f"{limit} is exceeded, for one {policy.unit} added or removed: no run is answered any more")
    else:
        say(
            f"{status.spent:.2%} of {limit} is used, for one {policy.unit} added or removed; "
            f"{1 - status.spent:.2%} is left"
        )
        own, word = f"{status.own:.2%}", f"{status.on_word:.2%}"
        say(f"of this {own} with this node's own noise, {word} on the server's word")
    if status.runs and status.epsilon is not None:
        say(
            f"the charges alone cost epsilon {status.epsilon:.4g} by PLD, if no run was chosen by another's "
            "results; the shares are of a limit that holds in any case, and no shares of epsilon"
        )
    if status.runs:
        rows = [[run.run, str(run.own), str(run.on_word)] for run in status.runs]
        print_table(("run", "releases with own noise", "on the server's word"), rows)
    say(f"last answer: {status.last_answer or 'none'} ({status.answers} in all)")
    say(f"refused or failed: {len(status.refusals)}" + (", the last:" if status.refusals else ""))
    for line in status.refusals[-_SHOWN:]:
        typer.echo(f"  {line['time']} run {line.get('run')}: {line['why']}")
