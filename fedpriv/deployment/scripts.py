"""The scripts and units that start a deployment's parties, and the example runs."""

from __future__ import annotations

import shlex

_QUIET = """\
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.1}
"""

_SERVER = """\
#!/usr/bin/env bash
# Starts the server: Flower's SuperLink, which listens on this machine only, and the proxy, which lets nodes
# in. With the argument superlink or proxy it starts one of the two, as systemd's units do.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
export FLWR_HOME="$PWD/flower" FEDPRIV_ENROLMENT="$PWD/enrolment.json"
{quiet}
superlink() {{
    exec flower-superlink --host 127.0.0.1 --port {control} --enable-supernode-auth --database state.db \\
        --ssl-certfile {certificate} --ssl-keyfile {key} --ssl-ca-certfile {roots} \\
        --disable-runtime-dependency-installation
}}
proxy() {{
    exec fedpriv deploy proxy .
}}
if [ $# -gt 0 ]; then
    "$1"
fi
fedpriv deploy check . --before-start
superlink & first=$!
proxy & second=$!
trap 'kill $first $second 2>/dev/null; wait' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
wait -n  # one has ended: end the other, too
"""

_NODE = """\
#!/usr/bin/env bash
# Starts this node. Its owner's settings are in party.toml, in the table [node-config].
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
export FLWR_HOME="$PWD/flower"
{quiet}
fedpriv deploy check . --before-start
exec flower-supernode --superlink {server} --root-certificates {roots} \\
    --auth-supernode-private-key {key} --host 127.0.0.1 --port {port} \\
    --node-config "$(fedpriv deploy node-config .)"
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
UMask=0077

[Install]
WantedBy=multi-user.target
"""

_RUN = """\
# {comment}
nodes-own-data = true
{level}unit = "example"
clients = {nodes}
examples-per-client = 1000
model = "logistic"
placement = "{placement}"
sampler = "{sampler}"
sampling-rate = {rate}
rounds = 5
learning-rate = {step}
epsilon = 3.0
delta = 1e-5
evaluate-every = 1
"""


def server_script(certificate: str, key: str, roots: str, control: int) -> str:
    """The server's ``start.sh``."""
    certificate, key, roots = map(shlex.quote, (certificate, key, roots))
    return _SERVER.format(quiet=_QUIET, certificate=certificate, key=key, roots=roots, control=control)


def node_script(server: str, roots: str, key: str, port: int) -> str:
    """A node's ``start.sh``."""
    server, roots, key = map(shlex.quote, (server, roots, key))
    return _NODE.format(quiet=_QUIET, server=server, roots=roots, key=key, port=port)


def server_units() -> dict[str, str]:
    """{file name: systemd unit} of the server."""
    home = "/etc/fedpriv/server"
    proxy_after = " fedpriv-superlink.service"
    units = {
        "superlink": _UNIT.format(what="SuperLink", home=home, argument=" superlink", after=""),
        "proxy": _UNIT.format(what="fleet proxy", home=home, argument=" proxy", after=proxy_after),
    }
    return {f"fedpriv-{name}.service": unit for name, unit in units.items()}


def node_unit(name: str) -> str:
    """The systemd unit of a node."""
    return _UNIT.format(what=name, home=f"/etc/fedpriv/{name}", argument="", after="")


def example_runs(nodes: int) -> dict[str, str]:
    """{file name: settings} of runs to try."""
    whole = {"nodes": nodes, "level": "", "sampler": "poisson", "rate": 0.2, "step": 3.0}
    return {
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
