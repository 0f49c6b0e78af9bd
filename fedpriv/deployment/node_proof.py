"""Whether a request's head shows that an enrolled node has sent it, before a large body is read.

A node signs the time, and names its key, in the head of each request. Flower checks that after the body has
come, since the body says which node it is about. The key and the signature can be checked before.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from email.message import Message
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedpriv.deployment import keys
from fedpriv.flower.enrolment import EnrolmentError, read_enrolment

FLWR = "1.41"  # whose heads these are; tests/deployment/test_node_proof.py holds them

KEY, TIME, SIGNATURE = "flwr-public-key", "flwr-timestamp", "flwr-signature"
OLDEST, AHEAD = 305.0, 5.0  # seconds by which the time may be past, and by which clocks may differ: Flower's


def proven(enrolment: Path, headers: Message) -> bool:
    """Whether a key of the server's record ``enrolment`` has signed a time of now in these headers."""
    try:
        key = serialization.load_pem_public_key(base64.b64decode(headers[KEY], validate=True))
        signature = base64.b64decode(headers[SIGNATURE], validate=True)
        signed = headers[TIME]
        age = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(signed)).total_seconds()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not -AHEAD < age < OLDEST:
            return False
        mark = keys.fingerprint(keys.public_line(key))
        if mark not in {entry["key"] for entry in read_enrolment(enrolment).values()}:
            return False
        key.verify(signature, signed.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    except (TypeError, ValueError, binascii.Error, UnsupportedAlgorithm, InvalidSignature, EnrolmentError):
        return False
    return True
