"""A Flower strategy that trains any ClientApp's model with differential privacy at the aggregation level.

The ClientApp stays as it is: it receives a model and returns it trained. :class:`PrivateStrategy` samples the
clients, clips the change of each, adds the changes up without weights, divides by the public expected number
of clients, adds the noise, and gives the answer to a private optimizer. It runs the same loop as every other
run of fedpriv (:mod:`fedpriv.federated.loop`), so that charges are on disk before clients are asked, and the
run stops before the release that would pass the budget.

>>> strategy = PrivateStrategy(population=1000, sampling_rate=0.1, rounds=50, epsilon=3, optimizer="dp-adam")
>>> strategy.config.clip_norm, strategy.config.delta, round(strategy.plan.mechanism.scale, 2)
(1.0, 0.0, 1.21)
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging import INFO
from pathlib import Path
from typing import Any, Self, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore import log

from fedpriv._internal import validation
from fedpriv.config.plan import Plan
from fedpriv.config.reading import read_run, require_run
from fedpriv.config.schema import Config
from fedpriv.federated.engine import Engine
from fedpriv.federated.loop import Progress, advance
from fedpriv.federated.stop_reason import StopReason
from fedpriv.flower.app_arrays import AppArrays
from fedpriv.flower.app_config import configured, planned
from fedpriv.flower.app_engine import AppEngine
from fedpriv.flower.app_run import AppRun, DivergedError, Evaluate
from fedpriv.flower.grid_engine import GridEngine
from fedpriv.flower.intervals import APP_REPLIES, NODE_LIST
from fedpriv.flower.noised_engine import NoisedEngine
from fedpriv.flower.virtual_app import require_same_arrays
from fedpriv.runs import checkpoints
from fedpriv.runs.checkpoints import Checkpoint
from fedpriv.runs.run_dir import RunFolder, default_folder
from fedpriv.runs.run_ledger import open_accountant

_DESCRIBE_TIMEOUT = 60.0  # seconds for a node of virtual clients to describe itself


class PrivateStrategy(Strategy):  # type: ignore[misc]  # Flower is not followed by mypy
    """Differentially private training of any Flower app, with noise that the server or the clients add.

    The privacy unit is a client: a Flower node with all its data. Neighbours differ by one client added or
    removed (``sampler="poisson"``, ``"everyone"``) or replaced (``"fixed-size"``, and ``"everyone"`` with
    ``relation="replace-one"``). Epsilon holds against
    everyone who sees the models of all rounds; clients trust the server. With ``placement="local"`` each
    client adds all of the noise and epsilon holds against the server too; with ``"distributed"`` it adds a
    share. Then the app is ``ClientApp(mods=[private_mod])`` (:mod:`fedpriv.flower.noise_mod`).

    Args:
        population: N, the public number of clients that may take part. Those who are offline contribute
            nothing, and the noise stays the same.
        sampling_rate: q: each client takes part in a round with this probability (Poisson sampling).
        rounds: T, the number of releases that share the budget. ADADP needs two of them for a step.
        epsilon: the budget's epsilon.
        optimizer: the name of a private optimizer (``fedpriv optimizers``), or one of
            :mod:`fedpriv.optimizers` as an object; by default that of ``fedpriv simulate``.
        folder: the output folder with ledger, model, report and picture; by default ``runs/<date and time>``.
        overwrite: whether an existing folder is replaced.
        resume: whether the run in ``folder`` goes on where it was interrupted, under what is left of its
            budget.
        frozen: names or patterns (``"encoder.*"``) of arrays that are not trained. Arrays of integers and the
            running statistics of BatchNorm layers are never trained.
        client_metrics: ``"drop"``, or ``"non-private"``, which lets the metrics that clients return through
            without noise, asks them for federated evaluation, and marks every output.
        start_timeout: the seconds to wait for all N clients to connect; the run begins without those missing.
        virtual_clients: whether the app is made by :func:`fedpriv.flower.virtual_clients`: then the N clients
            are spread over the nodes, of which there may be any number, and a node is no unit.
        strategy: a strategy whose ``configure_train`` adds to what clients are sent (:meth:`wrap`).
        **settings: further settings of ``fedpriv simulate --help`` for sampling, privacy and optimizers, with
            their defaults: ``clip_norm`` (C, the largest Euclidean norm of the change that a client may
            contribute), ``delta`` (1 / (10 N)), ``learning_rate``, ``sampler``, ``adaptive_quantile``,
            ``seed``, ``placement`` (``"central"``, ``"local"``, ``"distributed"``; ``"none"`` is a run
            without noise and without privacy).

    Attributes:
        config: all settings.
        plan: sampler, optimizer and calibrated noise. A default step size that depends on the number of
            parameters is filled in when the run starts.

    Raises ArgumentError for settings that contradict each other or have no meaning for a Flower app.
    """

    def __init__(
        self,
        *,
        population: int,
        sampling_rate: float,
        rounds: int,
        epsilon: float,
        optimizer: Any = None,
        folder: str | Path | None = None,
        overwrite: bool = False,
        resume: bool = False,
        frozen: Iterable[str] = (),
        client_metrics: str = "drop",
        start_timeout: float = 60.0,
        virtual_clients: bool = False,
        strategy: FedAvg | None = None,
        **settings: Any,
    ) -> None:
        own = {"sampling-rate": sampling_rate, "rounds": rounds, "epsilon": epsilon}
        with validation.python_names(Config.keys(), ("local-steps",)):
            self.config = configured(population, optimizer, own | settings)
            self.plan: Plan = planned(self.config, dimension=1)
        self.population = population
        self._frozen = (frozen,) if isinstance(frozen, str) else tuple(frozen)
        validation.choice("client_metrics", client_metrics, ("drop", "non-private"))
        self._let_through = client_metrics == "non-private"
        if self._let_through and self.plan.mechanism.placement.at_parties:
            allowed = f"be drop with placement {self.config.placement}"
            hint = "private_mod lets no metrics leave a client"
            raise validation.fail("client_metrics", client_metrics, allowed, hint)
        self._start_timeout = validation.non_negative("start_timeout", start_timeout)
        self._virtual = virtual_clients
        self._present: list[int] = []  # nodes that took part in the last release
        if virtual_clients:
            self._require_virtual(strategy)
        if resume and folder is None:
            raise validation.fail("folder", None, "be the folder of the run to resume")
        if folder is not None and not resume:
            with validation.python_names(()):
                RunFolder.check(folder, overwrite)
        self._folder, self._overwrite, self._resume = folder, overwrite, resume
        self._inner = _boundable(strategy) if strategy is not None else FedAvg()
        self._wraps = strategy is not None
        self._received: list[MetricRecord] = []

    @classmethod
    def wrap(cls, strategy: FedAvg, **settings: Any) -> Self:
        """A private strategy that sends what ``strategy`` sends, such as FedProx's proximal term.

        It takes over sampling, clipping, summing and the update; the content of the first message that
        ``strategy.configure_train`` makes goes to every sampled client.

        Raises ArgumentError if the strategy's aggregation is not a mean of the clients' models: only a mean
        can be replaced by a bounded sum.
        """
        return cls(strategy=strategy, **settings)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the private rounds. Arguments are those of Flower's strategies.

        Args:
            num_rounds: at most ``rounds``, for which the noise was calibrated; None: all of them.
            evaluate_fn: evaluation by the ServerApp, which must use public data. It is called before round 1
                and after each round.

        Returns Flower's Result with the released model. Raises ArgumentError before any client is asked if
        the arguments do not fit, and after the first round if the clients' replies do not.
        """
        until = self._until(num_rounds)
        arrays = AppArrays(initial_arrays, self._frozen)
        with validation.python_names(Config.keys(), ("local-steps",)):
            self.plan = planned(self.config, arrays.layout.dimension)
            resumed = self._checkpoint() if self._resume else None
        if self._virtual:
            if train_config:
                raise validation.fail("train_config", dict(train_config), "be left out with virtual_clients")
            require_same_arrays(grid, arrays.layout, min(timeout, _DESCRIBE_TIMEOUT))
        else:
            self._wait_for_clients(grid)
        folder = self._open_folder()
        self._log_start(arrays, folder)
        run = AppRun(self.plan, arrays, initial_arrays, folder, evaluate_fn, self._let_through, resumed)
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        result = Result()
        with open_accountant(self.plan, folder, resumed) as accountant:
            run.begin(accountant)
            try:
                stopped = self._rounds(
                    grid, run, min(until, self.plan.mechanism.rounds), timeout, configs, result
                )
            except BaseException:
                run.finish(StopReason.FAILED)
                raise
            run.finish(stopped)
        result.arrays, result.evaluate_metrics_serverapp = run.record, run.evaluations
        log(INFO, "fedpriv: %s; results are in %s", stopped.sentence, folder.path.resolve())
        return result

    def _rounds(
        self,
        grid: Grid,
        run: AppRun,
        until: int,
        timeout: float,
        configs: tuple[ConfigRecord, ConfigRecord],
        result: Result,
    ) -> StopReason:
        """Run the loop from the run's state; fills in the clients' metrics that are let through."""
        plan, key = self.plan, self.plan.key()
        train_config, evaluate_config = configs
        engine = self._engine(grid, run.arrays, timeout, train_config)

        def observe(progress: Progress) -> None:
            run.observe(progress)
            spent = run.accountant.progress()
            log(INFO, "[ROUND %s/%s] epsilon %.3f", progress.round, until, spent)
            if self._let_through:
                self._evaluate_clients(grid, progress.round, run.record, evaluate_config, timeout, result)

        cohorts = replace(plan.cohorts(key), data_on_node=not self._virtual)
        if self._virtual:  # one shard a node, which computes its clients together
            nodes = max(1, len(list(grid.get_node_ids())))
            cohorts = replace(cohorts, chunk_size=math.ceil(plan.mechanism.sampler.expected_size / nodes))
        accountant = run.accountant
        parts = (plan.mechanism, run.state, until, engine, accountant, key, cohorts, observe)
        try:
            return advance(*parts, accountant.releases).stopped
        except DivergedError:
            return StopReason.DIVERGED

    def _engine(self, grid: Grid, arrays: AppArrays, timeout: float, train_config: ConfigRecord) -> Engine:
        """What gathers the clients' sums: they are bounded here, or bounded and noised by the clients."""

        if self._virtual:
            patience = max(self._start_timeout, 1.0)
            return GridEngine(grid, timeout, patience, looks=APP_REPLIES)

        def nodes() -> Sequence[int]:
            return self._clients(grid)

        placement = self.plan.mechanism.placement
        if placement.at_parties:

            def content(number: int, record: ArrayRecord, node: int) -> RecordDict:
                return self._content(number, record, train_config, _OneNode(grid, node))

            return NoisedEngine(grid, arrays, content, nodes, timeout, self.plan.config, self._frozen)
        return AppEngine(
            grid,
            arrays,
            lambda number, record, asked: self._messages(number, record, train_config, grid, asked, timeout),
            nodes,
            timeout,
            noisy=placement.adds_noise,
            metrics=self._received.append if self._let_through else None,
        )

    def _messages(
        self,
        number: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        nodes: Sequence[int],
        timeout: float,
    ) -> Iterator[Message]:
        """One message for each node, of equal content, which says nothing of the others."""
        if not nodes:
            return
        one = self._content(number, arrays, config, _OneNode(grid, nodes[0]))
        for node in nodes:
            yield Message(one, dst_node_id=node, message_type=MessageType.TRAIN, ttl=timeout)

    def _content(self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> RecordDict:
        """What the wrapped strategy sends to a client, or what FedAvg sends."""
        with _quiet():  # Flower logs how many nodes are sampled, which is private
            messages = list(self.configure_train(number, arrays, copy.deepcopy(config), grid))
        if not messages:
            raise validation.ArgumentError("configure_train made no message; it must make one for each node.")
        return cast(RecordDict, messages[0].content)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round to the nodes of ``grid``; a subclass may add to their content.

        It is called with a grid of one node, whose message is then sent to every sampled client.
        """
        inner = copy.copy(self._inner)
        inner.fraction_train, inner.min_train_nodes, inner.min_available_nodes = 1.0, 1, 1
        return cast("Iterable[Message]", inner.configure_train(server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refused: replies are summed as they arrive and are never kept. Use :meth:`start`."""
        raise validation.ArgumentError(
            "PrivateStrategy has no aggregate_train: it charges before it asks, and adds replies as they "
            "arrive. Call start()."
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages for federated evaluation; none unless client metrics are let through."""
        if not self._let_through:
            return []
        return cast("Iterable[Message]", self._inner.configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics of federated evaluation; None unless client metrics are let through."""
        return self._inner.aggregate_evaluate(server_round, replies) if self._let_through else None

    def summary(self) -> None:
        """Log the strategy's public settings."""
        config, placement = self.plan.config, self.plan.mechanism.placement
        log(INFO, "\t├──> optimizer %s, %s noise", config.optimizer, config.placement)
        log(INFO, "\t├──> %s clients, %s", self.population, self.plan.mechanism.sampler.description)
        if placement.adds_noise:
            scale = self.plan.mechanism.scale
            log(INFO, "\t├──> budget: epsilon %g at delta %.3g", config.epsilon, config.delta)
            log(INFO, "\t└──> clip norm %g, noise multiplier %.4g", config.clip_norm, scale)

    def _evaluate_clients(
        self,
        grid: Grid,
        number: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        timeout: float,
        result: Result,
    ) -> None:
        """Fill in the clients' metrics of a round, which are not private."""
        if self._received:
            result.train_metrics_clientapp[number] = _mean(self._received)
            self._received.clear()
        messages = list(self.configure_evaluate(number, arrays, config, grid))
        if messages:
            found = self.aggregate_evaluate(number, grid.send_and_receive(messages, timeout=timeout))
            if found is not None:
                result.evaluate_metrics_clientapp[number] = found

    def _require_virtual(self, strategy: FedAvg | None) -> None:
        """Raises ArgumentError for what virtual clients cannot do."""
        if self.plan.mechanism.placement.at_parties:
            hint = "virtual clients add no noise; fedpriv simulate has such runs"
            raise validation.fail("placement", self.config.placement, "be central with virtual_clients", hint)
        if strategy is not None or self._let_through:
            name = "strategy" if strategy is not None else "client_metrics"
            hint = "virtual clients are sent the model alone, and return a sum alone"
            raise validation.fail(name, "given", "be left out with virtual_clients", hint)

    def _until(self, num_rounds: int | None) -> int:
        rounds = self.plan.rounds
        if num_rounds is None:
            return rounds
        if validation.integer("num_rounds", num_rounds, minimum=1) > rounds:
            hint = "the noise was calibrated for so many: give the strategy more rounds"
            raise validation.fail("num_rounds", num_rounds, f"be at most rounds={rounds}", hint)
        return num_rounds

    def _checkpoint(self) -> Checkpoint:
        """Where the run in the folder is taken up again. Raises ArgumentError if its settings were others."""
        folder = Path(str(self._folder))
        require_run("folder", folder, "hold the run to resume")
        checkpoints.require_settings(folder, Config.parse(read_run(folder)), self.plan.config)
        return checkpoints.read(folder, self.plan)

    def _open_folder(self) -> RunFolder:
        if self._resume:
            return RunFolder(Path(str(self._folder)))
        return RunFolder.create(self._folder or default_folder(), self._overwrite)

    def _clients(self, grid: Grid) -> Sequence[int]:
        """The connected nodes that take part, at most N; which number a node has depends on no data.

        A node that comes later takes no place of a connected one, so that nobody displaces another.
        """
        connected = sorted(grid.get_node_ids())
        self._present = [node for node in self._present if node in connected]
        later = [node for node in connected if node not in self._present]
        self._present = sorted(self._present + later[: self.population - len(self._present)])
        return self._present

    def _wait_for_clients(self, grid: Grid) -> None:
        """Wait for N clients, at most ``start_timeout`` seconds. Raises ArgumentError if there are more."""
        deadline = time.monotonic() + self._start_timeout
        while (connected := len(list(grid.get_node_ids()))) < self.population:
            if time.monotonic() > deadline:
                return
            time.sleep(NODE_LIST)
        if connected > self.population:
            hint = "it is the public number of all clients, and more than that are connected"
            raise validation.fail("population", self.population, "count every client", hint)

    def _log_start(self, arrays: AppArrays, folder: RunFolder) -> None:
        log(INFO, "Starting %s, private run in %s:", type(self).__name__, folder.path.resolve())
        self.summary()
        log(INFO, "fedpriv: clients count alike; their num-examples are ignored")
        if arrays.kept:
            log(INFO, "fedpriv: not trained, left as the server has them: %s", ", ".join(arrays.kept))
        if self._wraps:
            name = type(self._inner).__name__
            log(INFO, "fedpriv: %s decides what clients are sent; its update is replaced", name)
        if self._let_through:
            log(INFO, "fedpriv: NOT PRIVATE: client metrics are let through without noise")


class _OneNode:
    """A view of a grid in which one node is connected."""

    def __init__(self, grid: Grid, node: int) -> None:
        self._grid, self._node = grid, node

    def get_node_ids(self) -> list[int]:
        """The one node."""
        return [self._node]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Within this block Flower's logger is silent below warnings."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def _boundable(strategy: Any) -> FedAvg:
    """The strategy, if its aggregation is a mean of models that a bounded sum can replace."""
    from flwr.serverapp import strategy as flower

    name = type(strategy).__name__
    means = (flower.FedAvg, flower.FedProx, flower.FedAvgM, flower.FedAdam, flower.FedAdagrad, flower.FedYogi)
    aggregate: Callable[..., Any] | None = getattr(type(strategy), "aggregate_train", None)
    if not isinstance(strategy, FedAvg) or aggregate not in {kind.aggregate_train for kind in means}:
        hint = (
            "its aggregate_train is not a mean of the clients' models, which alone can be bounded and summed"
        )
        raise validation.fail(
            "strategy", name, "be FedAvg or one that adds to what it sends, as FedProx", hint
        )
    return strategy


def _mean(records: Sequence[MetricRecord]) -> MetricRecord:
    """The unweighted mean of each number that all records have."""
    names = [name for name in records[0] if all(isinstance(r.get(name), int | float) for r in records)]
    return MetricRecord(
        {name: sum(float(cast(float, r[name])) for r in records) / len(records) for name in names}
    )
