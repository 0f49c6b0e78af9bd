"""The scripts and units that start a deployment's parties, and the example runs."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv._internal import descriptors
from fedpriv._internal.settings import toml_value
from fedpriv.flower.intervals import TASKS
from fedpriv.secure_aggregation.threshold import MAX_PARTIES, MIN_PARTIES

_QUIET = """\
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
"""

_TASKS = f"""\
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=${{FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-{TASKS}}}
"""

_SERVER = """\
#!/usr/bin/env bash
# Starts the server: Flower's SuperLink, which listens on this machine only, the proxy, which lets nodes in,
# and the control proxy, which lets operators in. With the argument superlink, proxy or control it starts one
# of the three, as systemd's units do.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
export FLWR_HOME="$PWD/flower" FEDPRIV_ENROLMENT="$PWD/enrolment.json"
{quiet}
superlink() {{
    exec fedpriv deploy superlink --host 127.0.0.1 --port {control} \\
        --enable-supernode-auth --database state.db \\
        --ssl-certfile loopback.crt --ssl-keyfile loopback.key --ssl-ca-certfile loopback-ca.crt \\
        --disable-runtime-dependency-installation
}}
proxy() {{
    exec fedpriv deploy proxy .
}}
control() {{
    exec fedpriv deploy control .
}}
if [ $# -gt 0 ]; then
    "$1"
fi
fedpriv deploy check . --before-start
superlink & first=$!
proxy & second=$!
control & third=$!
trap 'kill $first $second $third 2>/dev/null; wait' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
wait -n  # one has ended: end the others, too
"""

_NODE = """\
#!/usr/bin/env bash
# Starts this node. What it may answer, and where its files are, is in policy.toml, which is its owner's.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
{quiet}
fedpriv deploy check . --before-start
exec fedpriv node run policy.toml
"""

_UNIT = """\
# Copy this file to /etc/systemd/system/, the folder to {home}, and create the user fedpriv.
[Unit]
Description=fedpriv {what}
After=network-online.target{after}
Wants=network-online.target

[Service]
User=fedpriv
WorkingDirectory={home}
ExecStart={home}/start.sh{argument}
Environment=PATH=/opt/fedpriv/bin:/usr/bin:/bin
Restart=on-failure
RestartSec=5
NoNewPrivileges=true
PrivateTmp=true
PrivateDevices=true
ProtectSystem=strict
ProtectHome=true
ProtectKernelTunables=true
ProtectControlGroups=true
RestrictSUIDSGID=true
ReadWritePaths={home}
UMask=0077{limits}

[Install]
WantedBy=multi-user.target
"""

_POLICY = """\
# What this node is, and what it may answer: its owner's decision. `fedpriv node policy` shows and checks it.
# Paths are relative to this folder, or absolute. `fedpriv node init policy.toml` makes the ledger, once.
[node]
superlink = {server}
root-certificates = "ca.crt"
private-key = "node.key"
partition-id = {partition}
num-partitions = {nodes}
data-file = "data.npz"
ledger-file = "ledger/ledger.jsonl"
ledger-anchor = "anchor/ledger-head"
{peers}
[limits]
run-epsilon = 3.0
epsilon-limit = 20.0
delta-limit = 1e-4
min-noise-multiplier = 0.1
max-clip-norm = 1.0
accept-central = true

[allow]
dataset = ["infinite-digits"]
model = ["logistic"]
optimizer = ["dp-sgd", "dynamic-dp-sgd"]
placement = ["central", "local", "distributed"]
unit = ["example"]
"""

_PEERS = """\
# For secure aggregation. Who makes a key knows it: owners make their own with `fedpriv node identity`.
{mark}identity-key = "identity.key"
{mark}peer-keys = "peers.txt"
"""

_RUN = """\
# {comment}
nodes-own-data = true
{level}{secure}unit = "example"
clients = {nodes}
examples-per-client = {examples}
model = "logistic"
placement = "{placement}"
sampler = "{sampler}"
sampling-rate = {rate}
rounds = 5
learning-rate = {step}
epsilon = 3.0
delta = {delta:g}
evaluate-every = 1
"""
_EXAMPLES = 1000  # of a node in example runs


def server_script(control: int) -> str:
    """The server's ``start.sh``; ``control`` is the SuperLink's port."""
    return _SERVER.format(quiet=_QUIET + _TASKS, control=control)


def node_script() -> str:
    """A node's ``start.sh``."""
    return _NODE.format(quiet=_QUIET)


def server_units() -> dict[str, str]:
    """{file name: systemd unit} of the server."""
    home = "/etc/fedpriv/server"
    described = {"superlink": "SuperLink", "proxy": "fleet proxy", "control": "control proxy"}
    return {
        f"fedpriv-{name}.service": _UNIT.format(
            what=what,
            home=home,
            argument=f" {name}",
            after="" if name == "superlink" else " fedpriv-superlink.service",
            limits=f"\nLimitNOFILE={descriptors.MOST}",
        )
        for name, what in described.items()
    }


def node_unit(name: str) -> str:
    """The systemd unit of a node."""
    return _UNIT.format(what=name, home=f"/etc/fedpriv/{name}", argument="", after="", limits="")


def node_policy(server: str, partition: int, nodes: int, identified: bool) -> str:
    """A node's ``policy.toml`` as its owner receives it, to be edited; the server is HOST:PORT.

    ``identified`` says whether the folder has identity keys for secure aggregation.
    """
    mark = "" if identified else "# "
    peers = _PEERS.format(mark=mark)
    return _POLICY.format(server=toml_value(server), partition=partition, nodes=nodes, peers=peers)


def example_runs(nodes: int) -> dict[str, str]:
    """{file name: settings} of runs to try."""
    delta = min(1e-5, 1 / (10 * nodes * _EXAMPLES))  # below 1 / units, however many nodes there are
    whole: dict[str, object] = {"nodes": nodes, "examples": _EXAMPLES, "delta": delta, "step": 3.0}
    whole |= {"level": "", "secure": "", "sampler": "poisson", "rate": 0.2}
    runs = {
        "central.toml": _RUN.format_map(
            whole | {"comment": "The server adds the noise; the nodes trust it.", "placement": "central"}
        ),
        "local.toml": _RUN.format_map(
            whole
            | {
                "comment": "Each node adds all of the noise to its own messages.",
                "placement": "local",
                "sampler": "everyone",
                "rate": 1.0,
            }
        ),
        "client.toml": _RUN.format_map(
            whole
            | {
                "comment": "Each node trains by itself with its own noise; the server averages.",
                "placement": "central",
                "level": 'level = "client"\nsilo-steps = 4\n',
                "step": 1.0,
            }
        ),
    }
    if MIN_PARTIES <= nodes <= MAX_PARTIES:
        secure = {
            "comment": "Each node adds a share of the noise; the server learns the sum and no message.",
            "placement": "distributed",
            "secure": "secure-aggregation = true\n",
            "sampler": "everyone",
            "rate": 1.0,
        }
        runs["secure.toml"] = _RUN.format_map(whole | secure)
    return runs


_SERVICE = """\
  {name}:
    image: fedpriv
    read_only: true
    user: "10001:10001"
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    tmpfs: [/tmp]
    restart: unless-stopped
    volumes:
{volumes}"""


def compose(nodes: int, ports: Sequence[int]) -> str:
    """A ``compose.yaml`` that starts all parties on one machine, each on a read-only root.

    ``ports`` are those at which nodes and operators reach the server.
    """
    server = _SERVICE.format(name="server", volumes="      - ./server:/party\n")
    open_ports = ", ".join(f'"{port}:{port}"' for port in ports)
    services = [server + f"    ports: [{open_ports}]\n    ulimits: {{nofile: {descriptors.MOST}}}\n"]
    for partition in range(nodes):
        name = f"node-{partition}"
        volumes = (
            f"      - ./{name}:/party:ro\n"
            f"      - ./{name}/ledger:/party/ledger\n      - ./{name}/anchor:/party/anchor\n"
        )
        services.append(_SERVICE.format(name=name, volumes=volumes) + _AFTER_SERVER)
    return _COMPOSE_HEAD + "services:\n" + "".join(services)


_AFTER_SERVER = """\
    depends_on:
      server: {condition: service_healthy}
"""

_COMPOSE_HEAD = """\
# All parties on one machine. The section "Containers" of fedpriv's deploy/README.md has the commands in their
# order: the deployment is made with --host server --listen 0.0.0.0, and the container's user owns the
# parties' folders. Only the mounted folders can be written: keep those of the ledgers and of the server.
"""
