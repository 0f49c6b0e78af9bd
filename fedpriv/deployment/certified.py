"""Flower's command ``flwr`` with a client certificate, which it has no option for.

The control proxy asks for an operator's certificate. A forwarder on the operator's loopback would let in
everyone on that machine; here the command itself presents the certificate, and no port is opened.

    python -m fedpriv.deployment.certified CERTIFICATE KEY ARGUMENTS...
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Sequence
from typing import Any

FLWR = "1.41"  # whose names are used here; tests/deployment/test_operators.py holds them


def certify(certificate: str, key: str) -> None:
    """Has every client of the Control API in this process present the certificate."""
    from flwr.supercore.control import ControlHttpClient

    plain = ControlHttpClient.__init__

    def init(client: ControlHttpClient, *arguments: Any, verify: ssl.SSLContext, **options: Any) -> None:
        verify.load_cert_chain(certificate, key)
        plain(client, *arguments, verify=verify, **options)

    ControlHttpClient.__init__ = init


def run(certificate: str, key: str, arguments: Sequence[str]) -> None:
    """Runs ``flwr ARGUMENTS``."""
    certify(certificate, key)
    from flwr.cli.app import app

    sys.argv = ["flwr", *arguments]
    app()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3:])
