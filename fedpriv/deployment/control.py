"""The control proxy: operators reach the calls that start, stop and watch runs, and nobody else does.

Flower's Control API asks for no credentials, so the SuperLink has it on the server's loopback alone. This
proxy listens at a port of its own, with TLS on both sides: a connection must prove the key of a certificate
in ``operators.json`` (:mod:`fedpriv.deployment.operators`). The file is read for each connection and each
request, and for each part of a log that is followed. So an operator who was revoked, or whose certificate has
ended, is refused at once, also on an open connection.

An operator may start, stop and watch runs. Nodes' keys are registered on the server's machine alone. Who did
what is in ``control-log.jsonl`` of the server's folder, a JSON line each: the operator's name, the
certificate's SHA-256 fingerprint, the call, the run and the answer. Calls that only look are noted once an
hour, since a run that is followed looks every second; refusals once a minute.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from email.message import Message
from http import HTTPStatus
from typing import Any

from cryptography import x509
from flwr.proto.control_pb2 import StartRunResponse, StopRunRequest

from fedpriv.deployment import keys, operators, proxy_limits
from fedpriv.deployment.folders import OPERATOR_PORT, Party
from fedpriv.deployment.proxy import Handler, Proxy, server_tls

LOG = "control-log.jsonl"
_CALLS = ("start-run", "stop-run", "list-runs", "list-nodes", "stream-logs")
_CHANGES = ("start-run", "stop-run")
_LOOKS_EACH, _REFUSALS_EACH = 3600.0, 60.0  # seconds between two notes of the same
_MOST_NOTED = 1024
_UNKNOWN = (
    "it is no operator's: it was revoked, has ended, or was never added; who administers the server adds one "
    "with `fedpriv deploy operator add`"
)
_NONE = "the connection has no client certificate; only operators may start, stop and watch runs"


class ControlProxy(Proxy):
    """The control proxy of a deployment's server; errors as of :class:`Proxy`."""

    port_fact = OPERATOR_PORT
    calls = re.compile(rf"/v1/control/({'|'.join(_CALLS)})")
    large = proxy_limits.CONTROL

    def __init__(self, server: Party) -> None:
        self.party = server
        self._noted, self._lock = OrderedDict[tuple[str, ...], float](), threading.Lock()
        super().__init__(server)

    def handler(self) -> type[Handler]:
        """See :meth:`Proxy.handler`."""
        return ControlHandler

    def operators(self) -> dict[str, x509.Certificate]:
        """{name: certificate} as the file has them now; none if it is damaged."""
        try:
            return operators.read(self.party)
        except keys.KeyFileError as error:
            self.note("refused", _REFUSALS_EACH, why=str(error))
            return {}

    def knows(self, headers: Message) -> bool:
        """See :meth:`Proxy.knows`. Each call is an operator's (:meth:`ControlHandler.do_POST`)."""
        return True

    def secured(self, request: socket.socket) -> ssl.SSLSocket:
        """See :meth:`Proxy.secured`. A client certificate that is not an operator's ends the handshake; a
        connection without one is told why it gets no answer."""
        tls = server_tls(self.party)  # new for each connection: it knows the operators of this moment
        tls.num_tickets = 0
        tls.verify_mode = ssl.CERT_OPTIONAL
        tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # these certificates, and no chain to them
        if known := self.operators():
            tls.load_verify_locations(cadata="".join(keys.pem(own).decode() for own in known.values()))
        try:
            return tls.wrap_socket(request, server_side=True)
        except ssl.SSLCertVerificationError as error:
            self.note("refused", _REFUSALS_EACH, why=f"client certificate: {error.verify_message}")
            raise

    def note(self, event: str, each: float = 0.0, **fields: Any) -> None:
        """Appends a line to the log, unless the same was noted within ``each`` seconds."""
        with self._lock:
            same = (event, *(str(value) for value in fields.values()))
            if each and time.monotonic() - self._noted.get(same, -each) < each:
                return
            self._noted[same] = time.monotonic()
            if len(self._noted) > _MOST_NOTED:
                self._noted.popitem(last=False)
            line = json.dumps(
                {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **fields}
            )
            path = self.party.folder / LOG
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
                file.write(line + "\n")
            print(line, flush=True)


class ControlHandler(Handler):
    """Requests of one connection, of which each must be an operator's."""

    server: ControlProxy

    def setup(self) -> None:
        """See :class:`Handler`."""
        super().setup()
        self._certificate = self.connection.getpeercert(binary_form=True)
        self._operator = ""  # who makes the request

    def do_GET(self) -> None:  # noqa: N802
        """Whether the proxy is there, and who asks."""
        if self.path == operators.WHO:
            if self._admitted():
                self._answer(HTTPStatus.OK, self._operator)
        else:
            super().do_GET()

    def do_POST(self) -> None:  # noqa: N802
        """Passes on an operator's call."""
        if self._admitted():
            super().do_POST()

    def _name(self) -> str:
        """The operator, by what the file says now; "" for nobody."""
        return operators.named(self.server.operators(), self._certificate) if self._certificate else ""

    def _admitted(self) -> bool:
        """Whether the connection is an operator's; answers it if it is not."""
        self._operator = self._name()
        if self._operator:
            return True
        why = _UNKNOWN if self._certificate else _NONE
        self.server.note("refused", _REFUSALS_EACH, **self._who(), call=self._call(), why=why)
        self._answer(HTTPStatus.FORBIDDEN, why)
        return False

    def may_go_on(self) -> bool:
        """See :meth:`Handler.may_go_on`: an operator who is revoked gets no more of a log."""
        return bool(self._name())

    def _who(self) -> dict[str, str]:
        mark = (
            operators.fingerprint(x509.load_der_x509_certificate(self._certificate))
            if self._certificate
            else ""
        )
        return {"operator": self._operator, "certificate": mark, "from": str(self.client_address[0])}

    def _call(self) -> str:
        return self.path.rpartition("/")[2][:64]

    def _streams(self) -> bool:
        return self._call() == "stream-logs"

    def passed(self, status: int, body: bytes, content: bytes) -> None:
        """Notes a call that was passed on."""
        call = self._call()
        each = 0.0 if call in _CHANGES else _LOOKS_EACH
        self.server.note("passed", each, **self._who(), call=call, status=status, **_run(call, body, content))


def _run(call: str, body: bytes, content: bytes) -> Mapping[str, str]:
    """The run that a call has started or ended, where it can be read."""
    try:
        if call == "start-run":
            return {"run": str(StartRunResponse.FromString(content).run_id)}
        if call == "stop-run":
            return {"run": str(StopRunRequest.FromString(body).run_id)}
    except Exception:  # a message of another version of Flower
        return {}
    return {}
