"""How much a proxy takes from its peers at a time, of whom it does not know yet whether they are nodes.

Flower checks a node's key after it has the whole request. So this much can be had by anybody who reaches the
port, and no more.
"""

from __future__ import annotations

from fedpriv.deployment.folders import Party

OF_A_NODE = 2  # connections: one for messages, one for heartbeats; a third one while it sends a large message
_CONNECTIONS = 2048  # at a time, or twice as many as the nodes have
_OTHERS = 64  # descriptors of a proxy that are not a connection's


def connections(server: Party, descriptors: int) -> int:
    """The number of connections that a proxy takes at a time, of a process with so many descriptors.

    A connection takes two: one to the peer, one to the SuperLink.

    >>> from pathlib import Path
    >>> few, many = (Party(Path(), {"nodes": nodes}) for nodes in (3, 2000))
    >>> connections(few, 1024), connections(few, 65536), connections(many, 65536)
    (480, 2048, 8000)
    """
    wanted = max(_CONNECTIONS, 2 * OF_A_NODE * server.nodes)
    return max(1, min(wanted, (descriptors - _OTHERS) // 2))
