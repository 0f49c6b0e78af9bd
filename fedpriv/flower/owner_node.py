"""``fedpriv node run``: the owner's process, which answers a SuperLink with the installed package alone.

A run is accepted as a configuration, which the owner's policy (:mod:`fedpriv.node.policy_file`) must allow.
Its messages are answered by the installed ClientApp in this process; no code of the run is imported. The
process stays warm: data, model and plan of a run are kept from message to message.

While it waits, the node asks the SuperLink for messages. The SuperLink of a deployment holds the question
until there is one (:mod:`fedpriv.flower.holding`). Any other is asked in the rhythm of the run
(:mod:`fedpriv.flower.intervals`): shortly before the next message is due, then at intervals that grow with
the time since the last one. An idle node asks about every 10 seconds.

A message that is refused, or fails, is answered with the name of the error's type only. The reason goes to
the node's journal. An error ends neither the process nor another run.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from flwr.app import Context, RecordDict

from fedpriv._internal.validation import FedprivError
from fedpriv.flower import client_app
from fedpriv.flower.error_masking import error_reply, public_text, raising
from fedpriv.flower.intervals import NODE, Rhythm, held
from fedpriv.flower.supernode import Link, RunEndedError, Task
from fedpriv.node.contact import Contact
from fedpriv.node.journal import ANSWERED, FAILED, REFUSED, Journal
from fedpriv.node.policy_file import Policy

_MOST_RUNS = 8  # whose state, or refusal, is kept in memory


class OwnerNode:
    """Answers the messages of a SuperLink for one policy.

    Args:
        policy: the owner's policy.
        link: the connection.
        journal: takes answers and refusals.
        contact: says when the SuperLink last answered a question for messages.

    Attributes:
        computes: whether an answer is computed now.
    """

    def __init__(self, policy: Policy, link: Link, journal: Journal, contact: Contact) -> None:
        self._policy, self._link, self._journal = policy, link, journal
        self._contact, self.computes = contact, False
        self._runs = OrderedDict[int, Context | FedprivError]()
        self._rhythm, self._last = Rhythm(*NODE), time.monotonic()

    def serve(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Answers messages until ``stopped()``."""
        while not stopped():
            with suppress(RunEndedError):
                task = self._link.next(held(time.monotonic() - self._last))
                self._contact.asked()
                if task is not None:
                    self._contact.answers()
                    self._rhythm.note(time.monotonic() - self._last)
                    self.answer(task)
                    self._last = time.monotonic()
            waited = time.monotonic() - self._last
            _rest(self._rhythm.node(waited, self._link.holds), stopped)

    def answer(self, task: Task) -> None:
        """Answers one message, with its reply or with the name of an error's type.

        Raises RunEndedError if its run has ended meanwhile.
        """
        message, stage = task.envelope.metadata, "policy"
        try:
            context = self._context(task.run)  # before the content is received: the policy decides
            stage = "message"
            content = task.read()
            self.computes = True
            with raising():
                reply = client_app.app(content, context)
        except RunEndedError:
            raise
        except Exception as error:
            event = REFUSED if isinstance(error, FedprivError) else FAILED
            why, self.computes = public_text(error) or type(error).__name__, False
            self._journal.note(event, task.run, message=message.message_type, stage=stage, why=why)
            self._link.reply(error_reply(task.envelope, error))
        else:
            self.computes = False
            self._link.reply(reply)
            self._journal.note(ANSWERED, task.run, message=message.message_type, group=message.group_id)

    def _context(self, number: int) -> Context:
        """The Context of a run that the policy allows. Raises an error, the same each time, for another."""
        if number not in self._runs:
            try:
                self._runs[number] = self._accepted(number)
            except FedprivError as error:
                self._runs[number] = error
            if len(self._runs) > _MOST_RUNS:
                self._runs.popitem(last=False)
        self._runs.move_to_end(number)
        found = self._runs[number]
        if isinstance(found, FedprivError):
            raise found
        return found

    def _accepted(self, number: int) -> Context:
        run = self._link.run(number)
        self._policy.check(run.config, run.app_hash)
        client_app.forget_runs()
        return Context(
            run_id=number,
            node_id=self._link.node,
            node_config=self._policy.node_config,
            state=RecordDict(),
            run_config=run.config,
        )


def _rest(seconds: float, stopped: Callable[[], bool]) -> None:
    """Waits, but not much longer than a second once ``stopped()``."""
    for _ in range(int(seconds)):
        time.sleep(1.0)
        if stopped():
            return
    time.sleep(seconds % 1.0)
