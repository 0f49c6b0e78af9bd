"""Many nodes in one process, for benchmarks/deployment.py: real keys, connections and messages, no data.

    python benchmarks/cheap_nodes.py DEPLOYMENT FIRST LAST

Each node of the deployment from FIRST to before LAST is a thread with the node's own key and its own
connection. It waits for messages as `fedpriv node` does and answers a request with sums of zeros. So a round
costs what the server and the messages cost, and not what hundreds of nodes that share two cores would.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fedpriv.federated.engine import PartialSum
from fedpriv.federated.worker import zeros
from fedpriv.flower.intervals import NODE, Rhythm, held
from fedpriv.flower.serialization import read_request, reply_content
from fedpriv.flower.supernode import RunEndedError, connected
from fedpriv.node.policy_file import read_policy

_APART = 0.05  # seconds between the starts of two nodes


def answered(message: Message, partition: int, partitions: int) -> RecordDict:
    """The content of a cheap node's reply."""
    if message.metadata.message_type == MessageType.QUERY:
        return RecordDict({"node": ConfigRecord({"partition-id": partition, "num-partitions": partitions})})
    request = read_request(message.content)
    sums = tuple(total.double() for total in zeros(request.query))
    return reply_content(PartialSum(sums, sum(shard.parties for shard in request.shards)), request.release)


def serve(folder: Path) -> None:
    """Answers as the node of this folder until the process ends."""
    policy = read_policy(folder / "policy.toml")
    own = (int(policy["partition-id"]), int(policy["num-partitions"]))
    with connected(policy["superlink"], policy["root-certificates"], policy["private-key"]) as link:
        rhythm, last = Rhythm(*NODE), time.monotonic()
        while True:
            with suppress(RunEndedError):
                if (task := link.next(held(time.monotonic() - last))) is not None:
                    rhythm.note(time.monotonic() - last)
                    message = task.read()
                    link.reply(Message(answered(message, *own), reply_to=message))
                    last = time.monotonic()
            time.sleep(rhythm.node(time.monotonic() - last, link.holds))


def main() -> None:
    """Starts the nodes, and waits until the process is ended."""
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for partition in range(first, last):
        threading.Thread(target=serve, args=(folder / f"node-{partition}",), daemon=True).start()
        time.sleep(_APART)
    threading.Event().wait()


if __name__ == "__main__":
    main()
