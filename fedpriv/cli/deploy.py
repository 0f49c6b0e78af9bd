"""``fedpriv deploy init | check | enrol | run | status | ...``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv._internal import validation
from fedpriv._internal.files import quoted
from fedpriv.cli.app import AsJson, app, group, print_table, refusing, say

if TYPE_CHECKING:
    from fedpriv.deployment.folders import Party
    from fedpriv.deployment.runs import Started

deploy_app = group(app, "deploy", "Provision, check, start and watch a deployment with TLS and keys.")

_FOLDER = "Folder of the deployment, or of one party."
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help=_FOLDER)]

_INIT = """Make the certificates, keys, settings and start scripts of a deployment, a folder for each party.

FOLDER must be new: keys are never written over. Without --certificate a test authority signs the server's
certificate. Without --node-public-key each node gets a key pair; with it, a node's private key never leaves
its owner, who puts its path into the node's policy.toml.

\b
Examples:
  fedpriv deploy init deployment --nodes 3
  fedpriv deploy init deployment --nodes 3 --host fl.hospital.example --listen 0.0.0.0
"""


@deploy_app.command("init", help=_INIT, short_help="Make keys, certificates and start scripts.")
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    nodes: Annotated[int, typer.Option(help="Number of nodes.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the server; repeat for more. Nodes connect to the first."),
    ] = None,
    listen: Annotated[str, typer.Option(help="Address at which the server waits for nodes.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port at which nodes connect.")] = 9443,
    control_port: Annotated[int, typer.Option(help="Port of the SuperLink on the server's loopback.")] = 8000,
    certificate: Annotated[Path | None, typer.Option(help="PEM file of a real certificate.")] = None,
    certificate_key: Annotated[Path | None, typer.Option(help="PEM file of its private key.")] = None,
    operator_port: Annotated[int, typer.Option(help="Port at which operators connect.")] = 9444,
    operator: Annotated[
        list[str] | None,
        typer.Option(help="Name of an operator, who may start runs from another machine; repeat for more."),
    ] = None,
    root_certificates: Annotated[Path | None, typer.Option(help="PEM file of its authority.")] = None,
    node_public_key: Annotated[
        list[Path] | None, typer.Option(help="A node's public key (OpenSSH); repeat, by partition.")
    ] = None,
) -> None:
    with refusing():
        from fedpriv.deployment import provision

        defaults = provision.Request(nodes)
        request = provision.Request(
            nodes,
            tuple(host) if host else defaults.hosts,
            listen,
            port,
            control_port,
            certificate,
            certificate_key,
            root_certificates,
            tuple(node_public_key or ()),
            operator_port,
            tuple(operator) if operator else defaults.operators,
        )
        made = provision.provision(folder, request)
    for path in made:
        typer.echo(f"{path}")
    if not request.real_certificate:
        say(f"{folder}/authority/ca.key signs certificates of this deployment: keep it offline.")
    then = f"`fedpriv deploy check {quoted(folder)}`"
    say(f"Copy each folder to its party's machine, and nothing else. Next: {then}")


@deploy_app.command("enrol", short_help="Register the nodes' keys and bind each to its partition.")
def enrol(folder: Folder) -> None:
    """Register the nodes' public keys with the running server, and bind each to its partition.

    Keys that are enrolled already are left alone. Run it on the server's machine.
    """
    with refusing(1):
        from fedpriv.deployment import enrol as enrolment

        new = enrolment.enrol(_server(folder))
    for partition, node in new.items():
        typer.echo(f"partition {partition} is node {node}")
    if not new:
        say("all keys are enrolled already")


@deploy_app.command("revoke", short_help="Make a node's key worthless at once.")
def revoke(folder: Folder, partition: Annotated[int, typer.Argument(metavar="PARTITION")]) -> None:
    """Revoke the key of a partition while everything else goes on: it opens nothing from now on."""
    with refusing(1):
        from fedpriv.deployment import enrol as enrolment

        enrolment.revoke(_server(folder), partition)
    say(f"the key of partition {partition} is revoked; `fedpriv deploy rotate` gives the partition another")


@deploy_app.command("rotate", short_help="Replace a node's key.")
def rotate(
    folder: Folder,
    partition: Annotated[int, typer.Argument(metavar="PARTITION")],
    public_key: Annotated[Path, typer.Argument(metavar="PUBLIC_KEY", help="The new key (OpenSSH).")],
) -> None:
    """Replace the key of a partition by a new one, while everything else goes on.

    The node's owner makes the new pair with `ssh-keygen -t ecdsa -b 384 -N "" -f node.key`, sends the public
    half, and starts the node again with the private half.
    """
    with refusing(1):
        from fedpriv.deployment import enrol as enrolment

        node = enrolment.rotate(_server(folder), partition, public_key)
    say(f"partition {partition} is node {node} with the new key; start the node again with its private half")


operator_app = group(deploy_app, "operator", "Say who may start runs from another machine.")
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The operator's name, which the log has.")]

_ADD = """Let an operator in while everything else goes on, and make the operator's folder.

Run it on the server's machine. Without --certificate a key and a certificate for a year are made: bring the
folder to the operator over a channel that you trust. With it the operator's key stays with its owner, who
puts it into the folder as operator.key. `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes
-keyout operator.key -out operator.crt -subj /CN=NAME -days 365` makes both.
"""


@operator_app.command("add", help=_ADD, short_help="Let an operator in.")
def operator_add(
    folder: Folder,
    name: _Name,
    certificate: Annotated[Path | None, typer.Option(help="The operator's own certificate (PEM).")] = None,
    into: Annotated[
        Path | None, typer.Option(help="Where the operator's folder is made; by default beside the server's.")
    ] = None,
) -> None:
    with refusing():
        from fedpriv.deployment import operators

        made = operators.add(_server(folder), name, certificate, into)
    typer.echo(f"{made}")
    say(f"copy {made} to the operator's machine: `fedpriv deploy run` takes it for the server's folder")


@operator_app.command("revoke", short_help="Refuse an operator at once.")
def operator_revoke(folder: Folder, name: _Name) -> None:
    """Refuse an operator from now on, also on open connections. Runs that the operator has started go on."""
    with refusing():
        from fedpriv.deployment import operators

        operators.revoke(_server(folder), name)
    say(f"{name} opens nothing from now on; `fedpriv deploy operator add` gives the name another certificate")


@operator_app.command("list", short_help="Show the operators.")
def operator_list(folder: Folder, as_json: AsJson = False) -> None:
    """Show each operator's certificate: its SHA-256 fingerprint, and when it ends."""
    with refusing():
        from fedpriv.deployment import operators

        rows = [
            {
                "operator": name,
                "certificate": operators.fingerprint(own),
                "ends": f"{own.not_valid_after_utc:%Y-%m-%d}",
            }
            for name, own in sorted(operators.read(_server(folder)).items())
        ]
    if as_json:
        typer.echo(json.dumps(rows))
    elif rows:
        print_table(tuple(rows[0]), [list(row.values()) for row in rows], "operators")
    else:
        say("no operators: runs are started on the server's machine alone")


_RUN = """Start a run on the deployment, show its log, and wait for its end.

FOLDER is the server's folder on its machine, or an operator's own folder on any machine that reaches the
server's operator-port. An operator's run writes its folder on the server's machine.

SETTINGS.toml has the settings of `fedpriv simulate`, with nodes-own-data = true and clients = the number of
nodes; --set changes one of them. Ctrl-C stops watching, not the run.

Exit codes: 0 the run ended at its rounds or its budget, 1 it failed or was stopped, 2 it was refused before
anything started, 130 the watching was interrupted.
"""


@deploy_app.command("run", help=_RUN, short_help="Start a run, wait for it, and return the truth.")
def run(
    folder: Folder,
    settings: Annotated[Path, typer.Argument(metavar="SETTINGS.toml", help="Settings of the run.")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting; repeat for more.")
    ] = None,
) -> None:
    with refusing():
        from fedpriv.config.reading import read_assignment, read_file
        from fedpriv.deployment import runs

        server = _controller(folder)
        table = read_file(settings) | dict(read_assignment(text) for text in assignments or ())
        runs.checked(server, table)
    with refusing(1):
        _wait(folder, server, runs.start(server, table))


_RESUME = """Continue a run that ended early, under what is left of its budget.

FOLDER is that of the server or of the operator who started the run. RUN is the number of the run, as
`fedpriv deploy status` shows it. It was stopped, has failed, or its server
was killed; then start the server's start.sh first. The run goes on in its folder after its last round, under
a new number of Flower's, and the nodes' ledgers count it as the same run. What was charged stays charged,
also for a round that was not finished. In a run of level=client each node goes on with the state of its silo.

Exit codes: as of `fedpriv deploy run`.
"""


@deploy_app.command("resume", help=_RESUME, short_help="Continue a run that ended early.")
def resume(folder: Folder, run: Annotated[int, typer.Argument(metavar="RUN")]) -> None:
    with refusing():
        from fedpriv.deployment import runs

        server = _controller(folder)
        settings = runs.continuation(server, run)
    with refusing(1):
        _wait(folder, server, runs.resume(server, settings))


def _wait(folder: Path, server: Party, started: Started) -> None:
    """Shows the run's log until it ends, and exits with 1 if it has failed."""
    from fedpriv.deployment import runs

    where = started.folder or "its folder on the server's machine"
    say(f"run {started.run} writes {where}")
    try:
        ended = runs.wait(server, started, typer.echo)
    except KeyboardInterrupt:
        say(f"run {started.run} goes on; `fedpriv deploy stop {quoted(folder)} {started.run}` ends it")
        raise typer.Exit(130) from None
    epsilon = "" if ended.epsilon is None else f", epsilon {ended.epsilon:.4g} is spent"
    details = f" ({ended.details})" if ended.details and not ended.success else ""
    report = f"its report says {ended.stopped}" if ended.stopped else "it wrote no report"
    number = started.run
    say(f"run {number} ended: Flower says {ended.status}{details}, {report}{epsilon}", bold=True)
    if ended.resumable:
        again = f"`fedpriv deploy resume {quoted(folder)} {number}`"
        say(f"{again} goes on with it, if rounds and budget are left")
    if not ended.success:
        raise typer.Exit(1)


@deploy_app.command("stop", short_help="End a run.")
def stop(folder: Folder, run: Annotated[int, typer.Argument(metavar="RUN")]) -> None:
    """End a run. What it has charged stays charged."""
    with refusing(1):
        from fedpriv.deployment import control_api

        control_api.stop_run(_controller(folder), run)


@deploy_app.command("status", short_help="Show nodes, runs, rounds and epsilon.")
def status(folder: Folder, as_json: AsJson = False) -> None:
    """Show the deployment's nodes, and its runs with the round and epsilon of their last evaluation."""
    with refusing(1):
        from fedpriv.deployment import runs

        server = _controller(folder)
        tables = {"nodes": runs.nodes_table(server), "runs": runs.runs_table(server)}
    if as_json:
        typer.echo(json.dumps(tables))
        return
    for title, rows in tables.items():
        if rows:
            cells = [["-" if cell is None else _short(cell) for cell in row.values()] for row in rows]
            print_table(tuple(rows[0]), cells, title)
        else:
            say(f"no {title} yet")


def _short(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


@deploy_app.command(
    "superlink",
    short_help="Run Flower's SuperLink, with patient starts.",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def superlink(context: typer.Context) -> None:
    """Run Flower's SuperLink; all arguments are its own. A slow start of an app is not begun a second time.

    The server's start.sh starts it.
    """
    from fedpriv.deployment import starts

    starts.run("flower-superlink", context.args)


@deploy_app.command("control", short_help="Let operators in to the control API, and nobody else.")
def control(folder: Folder) -> None:
    """Run the control proxy: it passes on what operators call to start, stop and watch runs, and logs it.

    The server's start.sh starts it.
    """
    with refusing(1):
        from fedpriv.deployment import control as control_proxy
        from fedpriv.deployment.folders import OPERATOR_PORT
        from fedpriv.deployment.proxy import serve

        server = _server(folder)
        if OPERATOR_PORT not in server.facts:
            raise validation.fail(OPERATOR_PORT, None, "be set in the server's party.toml")
        say(f"operators connect to {server.facts['listen']}:{server.facts[OPERATOR_PORT]}")
        serve(server, control_proxy.ControlProxy)


@deploy_app.command("proxy", short_help="Let nodes in, and nobody to the control API.")
def proxy(folder: Folder) -> None:
    """Run the proxy at the address of the nodes: it passes on the calls of nodes and nothing else.

    The server's start.sh starts it.
    """
    with refusing(1):
        from fedpriv.deployment import proxy as fleet

        server = _server(folder)
        say(f"nodes connect to {server.facts['listen']}:{server.facts['port']}")
        fleet.serve(server)


def _controller(folder: Path) -> Party:
    from fedpriv.deployment.folders import read_controller

    return read_controller(folder)


def _server(folder: Path) -> Party:
    from fedpriv.deployment.folders import read_server

    return read_server(folder)


_CHECK = """Say what is missing or wrong on this machine, and what to do.

Of the whole deployment's folder it looks at every party, of a party's folder at that one. It looks at
versions, certificates, names, dates, keys and who can read them, ports, open files, the way to the server,
clocks, the data file, the ledger and the owner's policy. It changes and charges nothing.

With --running it looks only whether the party runs now: whether each of the server's ports answers, or when
the server last answered the node.

Exit codes: 0 nothing is wrong (there may be notes), 1 something is.
"""


@deploy_app.command("check", help=_CHECK, short_help="Say what is wrong before anything starts.")
def check(
    folder: Folder,
    party: Annotated[str, typer.Option(help="Only this party: server, or node-0, node-1, ...")] = "",
    before_start: Annotated[
        bool, typer.Option("--before-start", help="The party is about to start: its ports must be free.")
    ] = False,
    running: Annotated[
        bool, typer.Option("--running", help="Look only whether the server answers, or the node has contact.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    with refusing():
        from fedpriv.deployment import checks, node_checks, operator_checks, server_checks
        from fedpriv.deployment.folders import read_parties

        if running and before_start:
            raise validation.fail("--running", True, "be given without --before-start")
        findings = list[checks.Finding]()
        for member in read_parties(folder, party):
            if running:
                findings += checks.what_runs(member)
                continue
            own = server_checks if member.is_server else node_checks if member.is_node else operator_checks
            findings += checks.looked(member, own.looks(member, before_start))
    wrong = [finding for finding in findings if finding.state is checks.State.WRONG]
    if as_json:
        typer.echo(json.dumps([vars(finding) for finding in findings]))
    elif not before_start or wrong:
        rows = [[each.party, each.subject, each.state, each.text] for each in findings]
        print_table(("party", "what", "state", "seen"), rows)
        for each in findings:
            if each.remedy:
                say(f"{each.party}, {each.subject}: {each.remedy}.", bold=each in wrong)
    if wrong:
        say(f"{len(wrong)} of {len(findings)} checks failed", bold=True, err=as_json)
        raise typer.Exit(1)


_SAMPLE = """Write a data file of handwritten digits into each node's folder, to try the deployment with.

The files are disjoint parts of the data set infinite-digits. A file that is there already is refused.
"""


@deploy_app.command("sample-data", help=_SAMPLE, short_help="Write data files to try the deployment with.")
def sample_data(
    folder: Folder, examples: Annotated[int, typer.Option(help="Examples of each node.")] = 1000
) -> None:
    with refusing():
        validation.integer("--examples", examples, minimum=1)
        from fedpriv.deployment.folders import read_parties
        from fedpriv.deployment.sample_data import write

        for path in write([party for party in read_parties(folder) if party.is_node], examples):
            typer.echo(f"{path}")
