"""How often the parties of a deployment look for what they wait for: every interval that fedpriv sets.

Flower's server tells nobody that a message has come: whoever waits for one asks, and each question costs the
server some milliseconds. A :class:`Rhythm` asks seldom before an answer can be there, and often when it is
due.
``docs/guides/deploy.md`` has these intervals in a table.
"""

from __future__ import annotations

# Least and most seconds between a node's looks for messages. A look costs a SuperLink about 4 ms of one core,
# so 1,000 idle nodes that looked every 3 seconds, as Flower's do, would take more than it has.
NODE = (0.05, 10.0)
# Seconds for which a deployment's SuperLink holds a question. A node's: half of the time since its last
# message, within these bounds. A ServerApp's: it looks at its deadlines in between.
NODE_HELD, REPLIES_HELD = (2.0, 5.0), 1.0
# A node whose questions are held asks again at once (:meth:`Rhythm.rest`), or after NODE_RESTS seconds if it
# had no message for as long as NODE_BUSY.
NODE_BUSY, NODE_RESTS = 60.0, 5.0
HELD_MOST = 10.0  # whatever a question says
REPLIES = (0.05, 1.0)  # between the server's looks for replies
APP_REPLIES = (0.05, 0.05)  # the same, of a strategy over an app's clients
NODE_LIST = 0.2  # between looks at the list of nodes while a federation assembles
# Between looks of `fedpriv deploy run` at its run: while the run's log goes on, and after its end.
RUN_GOES_ON, RUN_STATE = 5.0, 0.5
TASKS = 0.5  # between the SuperLink's own looks for runs to start: Flower's FLWR_SUPEREXEC_TASK_POLL_INTERVAL
# Without contact for so many seconds a node counts as one that does not run. Its server answers a question at
# least every 20 seconds, and Flower's heartbeats, which go on while it answers a message, about as often.
CONTACT_LOST = 60.0
SUPERLINK_GONE = 30.0  # without an answer of the SuperLink, after which a ServerApp ends its run as failed

_SHARE = 0.15  # of the seconds waited so far: the next look
_EARLY = 0.8  # of the wait that is expected: the first look
_SHORTER = 0.5  # of a wait that was over at the first look: the next one that is expected


def held(waited: float) -> float:
    """The seconds for which a node's question may be held, after so many seconds without a message.

    >>> held(0.5), held(6.0), held(600.0)
    (2.0, 3.0, 5.0)
    """
    least, most = NODE_HELD
    return min(max(waited / 2, least), most)


class Rhythm:
    """When to look next for something that comes again and again.

    The first look comes shortly before the last wait's length is over. Later looks, and all looks of whoever
    has no wait to go by, are a share of the wait apart: what comes after n seconds is found within 0.15 n.
    What is there at the first look may have been there for long, so half of that wait is expected next.

    Args:
        least, most: the bounds of the seconds between two looks.

    >>> rhythm = Rhythm(0.05, 3.0)
    >>> rhythm.pause(0.0), rhythm.pause(2.0), rhythm.pause(3600.0)
    (0.05, 0.3, 3.0)
    >>> rhythm.note(1.0)
    >>> rhythm.pause(0.0), round(rhythm.pause(0.8), 2)
    (0.8, 0.12)
    >>> rhythm.note(1.0)
    >>> rhythm.pause(0.0)
    0.8
    >>> rhythm.note(0.8)
    >>> round(rhythm.pause(0.0), 2)
    0.32

    Who asks a SuperLink that holds questions needs no pauses, unless the wait is longer than it holds one.

    >>> held = Rhythm(0.05, 10.0)
    >>> held.note(1.0)
    >>> held.rest(0.0)
    0.0
    >>> held.note(10.0)
    >>> held.rest(0.0), held.rest(10.0)
    (8.0, 1.5)
    """

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most
        self._expected, self._looks = 0.0, 0

    @property
    def known(self) -> bool:
        """Whether there is an earlier wait to go by."""
        return self._expected > 0

    def pause(self, waited: float) -> float:
        """The seconds until the next look, after ``waited`` seconds."""
        self._looks += 1
        early = _EARLY * self._expected - waited
        return min(max(early if early > 0 else _SHARE * waited, self._least), self._most)

    def rest(self, waited: float) -> float:
        """The seconds until the next look of whoever has its questions held, after ``waited`` seconds.

        A held question costs nothing while it waits, but one whose time is up has been in vain.
        """
        return self.pause(waited) if self._expected > NODE_HELD[1] else 0.0

    def node(self, waited: float, holds: bool) -> float:
        """The seconds until a node asks again, after ``waited`` seconds, if its questions are held or not."""
        if not holds:
            return self.pause(waited)
        return NODE_RESTS if waited > NODE_BUSY else self.rest(waited)

    def note(self, waited: float) -> None:
        """What was waited for has come after so many seconds."""
        self._expected = waited * (_SHORTER if self._looks == 1 else 1.0)
        self._looks = 0
