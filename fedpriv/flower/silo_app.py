"""Private training inside any Flower ClientApp: the client level for a silo whose app is its owner's own.

In the owner's ``@app.train()`` a :class:`Silo` takes the place of the training loop. In each round it makes K
private steps on the silo's own examples, from the model that the server sent, and returns the new model. The
noise is the silo's own, so the model is private before it leaves, and any server strategy may use it, FedAvg
included. It is the client level of fedpriv's own apps (:mod:`fedpriv.node.silo`): the same loop, optimizers,
samplers and ledger.

>>> import tempfile, torch
>>> from flwr.app import Context, RecordDict
>>> context = Context(1, 1, {}, RecordDict(), {})
>>> examples, ledger = (torch.ones(40, 3), [0, 1] * 20), f"{tempfile.mkdtemp()}/ledger.jsonl"
>>> public = {"rounds": 5, "steps": 2, "epsilon": 3, "sampling_rate": 0.1}
>>> silo = Silo(context, torch.nn.Linear(3, 2), examples, ledger=ledger, **public)
>>> silo.plan.mechanism.rounds, silo.plan.config.optimizer
(10, 'dynamic-dp-sgd')
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedpriv._internal import hints, user_code, validation
from fedpriv._internal.settings import by_key
from fedpriv.accounting import Budget
from fedpriv.config.builders import choose_device, make_augmentation, make_task, make_view, make_work
from fedpriv.config.plan import Plan, make_plan
from fedpriv.config.schema import Config
from fedpriv.data import Arrays, Source
from fedpriv.data.features import with_features
from fedpriv.data.inputs import examples_of
from fedpriv.federated.worker import Worker
from fedpriv.flower.error_masking import error_reply
from fedpriv.flower.serialization import APP_FLOATS, only_record, read_vector
from fedpriv.flower.silo_serialization import read_memories, write_memories
from fedpriv.node.ledger import NodeLedger
from fedpriv.node.silo import SiloWorker, TrainRequest, round_events
from fedpriv.parameters import layout_of
from fedpriv.rng import Key

_log = logging.getLogger(__name__)

_ROUND = "fedpriv-rounds"  # where a node counts the rounds that it answered
_SILO = 0  # the number of a silo that knows of no other
_SET = {"level": "client", "unit": "example", "clients": 1, "engine": "in-process"}


class Silo:
    """Private training of a model on one silo's examples, over the rounds of a Flower run.

    The privacy unit is an example of this silo; neighbours differ by one example added or removed. Epsilon
    holds over all rounds against everyone outside the silo: the server, the other silos, and who sees the
    models.

    Args:
        context: that of the ClientApp. The optimizer's state is kept in it from round to round.
        model: the model that the server trains, as an ``nn.Module``, which is copied and not changed.
        dataset: the silo's examples: (x, y) of arrays, tensors or lists, or a torch Dataset of such pairs.
        rounds: the most rounds of the run; together they spend the budget.
        steps: K, the private steps of a round.
        epsilon: the budget of all rounds.
        sampling_rate: q: each example is in the cohort of a step with this probability, in secret.
        ledger: the file of the silo's ledger. All runs on this data must share it. Keep it with the data.
        optimizer: the name of a private optimizer, or one of :mod:`fedpriv.optimizers` as an object; by
            default that of ``fedpriv simulate``.
        examples: the public number of examples; by default the data set's size, which is then public: the
            noise and the reply's ``num-examples`` follow from it.
        loss: a function of outputs and y that gives each example's loss; by default cross-entropy for labels,
            half the squared error for values.
        epsilon_limit, delta_limit: the owner's limit over all runs in the ledger; both or neither.
        **settings: further settings of ``fedpriv train --help``, such as ``clip_norm``, ``learning_rate`` or
            ``delta`` (by default 1 / (10 examples), and at most the owner's ``delta_limit``).

    Attributes:
        plan: sampler, optimizer and calibrated noise.

    Raises ArgumentError for settings that contradict each other, before the data is read.
    """

    def __init__(
        self,
        context: Context,
        model: nn.Module,
        dataset: tuple[Any, Any] | Dataset[Any],
        *,
        rounds: int,
        steps: int,
        epsilon: float,
        sampling_rate: float,
        ledger: str | Path,
        optimizer: Any = None,
        examples: int | None = None,
        loss: Any = None,
        epsilon_limit: float | None = None,
        delta_limit: float | None = None,
        **settings: Any,
    ) -> None:
        known, given = Config.keys(), by_key(settings)
        for key in given:
            if key not in known or key in _SET:
                raise validation.ArgumentError(f"there is no argument {key!r}; {hints.of_key(key, known)}")
        self._context, self._module, self._dataset, self._loss = context, model, dataset, loss
        self._layout = layout_of(model)
        size = _size(dataset, examples)
        if delta_limit is not None:
            given.setdefault("delta", min(delta_limit, 1 / (10 * size)))
        values = {
            **_SET,
            **given,
            "rounds": rounds,
            "silo-steps": steps,
            "epsilon": epsilon,
            "sampling-rate": sampling_rate,
            "examples-per-client": size,
            "model": user_code.reference(model),
            "dataset": f"{user_code.IN_MEMORY}:own-examples",
            **({"loss": user_code.reference(loss)} if loss is not None else {}),
        }
        with validation.python_names(known):
            named = {"optimizer": optimizer} if isinstance(optimizer, str) else {}
            config = Config.parse(values | named)
            own = None if named else optimizer
            self.plan: Plan = make_plan(config, own, self._layout.dimension)
        self._gate = NodeLedger(self.plan, Path(ledger), context.run_id, _limit(epsilon_limit, delta_limit))

    def answer(self, message: Message) -> Message:
        """The reply to a train message: the model after K private steps, under the names that were sent.

        Arrays that the model does not train are returned as they were sent. ``num-examples`` is the public
        number of examples. The reply to a round that is not planned, was answered before, or would pass the
        budget or the owner's limit is an error that names its type alone, since texts can quote data. The
        node's own log has the reason.
        """
        try:
            return self._answer(message)
        except Exception as error:
            _log.warning("this silo does not answer: %s: %s", type(error).__name__, error)
            return error_reply(message, error)

    def _answer(self, message: Message) -> Message:
        if not self._gate.has_begun():  # a run that would pass the owner's limit is refused before it begins
            self._gate.look_ahead()
            budget, rounds = self.plan.budget, self.plan.rounds
            if budget is not None:
                text = "this silo's run may spend epsilon %g at delta %.3g in %d rounds"
                _log.info(text, budget.epsilon, budget.delta, rounds)
        key, sent = only_record(message.content)
        params = self._layout.join({name: read_vector(sent, name, APP_FLOATS) for name in self._layout.names})
        number = self._number(message.content)
        trained = self._layout.split(params.float() + self._change(params.float(), number))
        back = {
            name: Array(trained[name].numpy().astype(array.dtype)) if name in trained else array
            for name, array in sent.items()
        }
        metrics = MetricRecord({"num-examples": self.plan.config.examples_per_client})
        return Message(RecordDict({key: ArrayRecord(back), "metrics": metrics}), reply_to=message)

    def _change(self, params: Tensor, number: int) -> Tensor:
        """theta_K - theta of a round, float32 (d,); the optimizer's state is in the Context afterwards."""
        state = self._context.state
        memories = read_memories(state, (_SILO,))
        events = round_events(self.plan, number) if number < self.plan.rounds else ()
        worker = SiloWorker(self.plan, self._side, memories, self._gate)
        try:
            [change] = worker.train(TrainRequest(params, number, events, (_SILO,)))
        finally:  # a round that was begun and failed counts, too
            write_memories(state, memories)
            state[_ROUND] = ConfigRecord({"answered": number + 1})
        return change.delta.float()

    def _number(self, content: RecordDict) -> int:
        """The round's number from 0: the server's, where the message has it, else this node's count."""
        for record in content.config_records.values():
            if isinstance(number := record.get("server-round"), int) and number >= 1:
                return number - 1
        counted = self._context.state.get(_ROUND)
        return int(counted["answered"]) if isinstance(counted, ConfigRecord) else 0

    @cached_property
    def _side(self) -> Worker:
        """Computes sums over the silo's examples."""
        config = self.plan.config
        source = with_features(_source(self._dataset, self._module), config.features, config.features_folder)
        objects = {"dataset": source, "model": self._module, **({"loss": self._loss} if self._loss else {})}
        with user_code.objects(objects):
            task, view = make_task(config, source), make_view(config, source)
            augmentation = make_augmentation(config, source)
        return Worker(
            task=task,
            work=make_work(config),
            view=view,
            key=Key.of(config.asked_seed),
            device=choose_device(config.device),
            memory=config.memory_budget * 2**20,
            exact=config.exact_noise,
            augmentation=augmentation,
        )


def _size(dataset: Any, examples: int | None) -> int:
    """The public number of examples. Raises ArgumentError if the data set has fewer, or no size."""
    parts = dataset[1] if isinstance(dataset, Sequence) and len(dataset) == 2 else dataset
    if not hasattr(parts, "__len__"):
        hint = "give (x, y), or a torch Dataset with a length"
        raise validation.fail("dataset", type(dataset).__name__, "have a length", hint)
    if examples is None:
        return len(parts)
    if validation.integer("examples", examples, minimum=1) > len(parts):
        raise validation.fail("examples", examples, "be at most the number of examples that are there")
    return examples


def _source(dataset: Any, model: nn.Module) -> Source:
    """The examples as a source whose test part is empty of them: one example of zeros."""
    x, y = examples_of(dataset)
    zeros = x[:1] * 0
    if y.dtype.kind == "f":
        return Arrays("own-examples", x, y, zeros, y[:1] * 0, 1, target="value")
    return Arrays("own-examples", x, y, zeros, y[:1] * 0, max(2, _outputs(model, zeros)), target="label")


def _outputs(model: nn.Module, x: Any) -> int:
    """How many numbers the model gives for an example x (1, ...)."""
    with torch.no_grad():
        return int(model(torch.as_tensor(x).float()).shape[-1])


def _limit(epsilon: float | None, delta: float | None) -> Budget | None:
    if (epsilon is None) != (delta is None):
        raise validation.fail("delta_limit", delta, "be given together with epsilon_limit")
    return None if epsilon is None or delta is None else Budget(epsilon, delta)
