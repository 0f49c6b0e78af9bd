"""A private strategy over an ordinary Flower app: the run of fedpriv's own apps, whatever clients answer."""

from __future__ import annotations

import json
import math
import time
import weakref
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedMedian,
    FedProx,
    Krum,
    Result,
)
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from helpers.app_runs import NEEDS, SETTINGS, events, initial, vector
from helpers.noising_app import NoisingGrid
from helpers.ordinary_app import CLIENTS, FEDERATION, AppGrid, Tamper, changed, failed

import fedpriv
from fedpriv import ArgumentError
from fedpriv.accounting import Event, epsilon
from fedpriv.federated.engine import Shard, SumRequest
from fedpriv.flower.accountant import FlowerAccountant
from fedpriv.flower.app_arrays import AppArrays
from fedpriv.flower.app_engine import AppEngine
from fedpriv.flower.private_strategy import PrivateStrategy
from fedpriv.mechanism.query import Query, SumBlock, Term
from fedpriv.optimizers import METHODS
from fedpriv.runs.result import load_result


def run(
    folder: Path, grid: AppGrid | None = None, start: Mapping[str, Any] | None = None, **changes: Any
) -> Result:
    settings = {**SETTINGS, "population": CLIENTS, "folder": folder, "start_timeout": 0.0, **changes}
    strategy = PrivateStrategy(**settings)
    return strategy.start(grid or AppGrid(), initial()[0], **{"timeout": 5, **(start or {})})


LEARNS = [name for name in METHODS if name not in ("adadps", "noisy-adagrad", "pda-dpmd")]


@pytest.mark.parametrize(
    ("optimizer", "rounds"),
    [
        *((name, 4) for name in LEARNS),
        *(pytest.param(name, 20, marks=[pytest.mark.slow, pytest.mark.exhaustive]) for name in LEARNS),
    ],
)
def test_an_ordinary_app_trains_as_fedprivs_own(optimizer: str, rounds: int, tmp_path: Path) -> None:
    changes = {"optimizer": optimizer, "rounds": rounds, **NEEDS.get(optimizer, {})}
    result = run(tmp_path / "app", **changes)
    own = fedpriv.simulate({**FEDERATION}, folder=tmp_path / "own", **{**SETTINGS, **changes})
    trained = vector(result.arrays)
    assert float((trained - initial()[1]).norm()) > 1e-3
    torch.testing.assert_close(trained, own.params, rtol=1e-5, atol=1e-6)
    assert events(tmp_path / "app") == events(tmp_path / "own")


def test_adaptive_clipping_and_layers_are_those_of_a_simulation(tmp_path: Path) -> None:
    for number, changes in enumerate(({"adaptive_quantile": 0.5}, {"clipping": "per-layer"})):
        result = run(tmp_path / f"app{number}", **changes)
        own = fedpriv.simulate({**FEDERATION}, **{**SETTINGS, **changes})
        torch.testing.assert_close(vector(result.arrays), own.params, rtol=1e-5, atol=1e-6)


def test_a_folder_is_that_of_a_simulation(tmp_path: Path) -> None:
    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": 0.5 + number / 100})

    result = run(tmp_path / "run", start={"evaluate_fn": evaluate})
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2, 3, 4]
    loaded = load_result(tmp_path / "run")
    assert (loaded.stopped, loaded.score) == ("rounds", 0.54)
    assert 0.9 * 8 < loaded.epsilon <= 8
    torch.testing.assert_close(loaded.params, vector(result.arrays))
    report = (tmp_path / "run" / "report.md").read_text()
    for text in (
        "a Flower node with all its data",
        "evaluate_fn",
        "7,850 parameters",
        "not private (seed 5)",
    ):
        assert text in report
    assert "cnn" not in report
    assert "digits" not in report
    assert (tmp_path / "run" / "curves.png").stat().st_size


ODD: dict[str, Tamper] = {
    "is not finite": lambda k, reply: changed(reply, lambda a: a[next(iter(a))].fill(math.nan)),
    "is infinite": lambda k, reply: changed(reply, lambda a: a[next(iter(a))].fill(math.inf)),
    "has another shape": lambda k, reply: changed(reply, lambda a: a.update({next(iter(a)): np.zeros(3)})),
    "lacks an array": lambda k, reply: changed(reply, lambda a: a.pop(next(iter(a)))),
    "has another array": lambda k, reply: changed(reply, lambda a: a.update(more=np.zeros(3))),
    "holds integers": lambda k, reply: changed(
        reply, lambda a: a.update({next(iter(a)): np.zeros((10, 784), int)})
    ),
    "is an error": lambda k, reply: failed(reply),
    "does not arrive": lambda k, reply: None,
}


@pytest.mark.parametrize("what", ODD)
def test_a_reply_that_does_not_fit_contributes_nothing(what: str, tmp_path: Path) -> None:
    """As if these clients were not there: the noise, the epsilon and the others' part are the same."""

    def tamper(partition: int, reply: Message) -> Message | None:
        return ODD[what](partition, reply) if partition >= CLIENTS // 2 else reply

    start = {"timeout": 0.3}
    odd = run(tmp_path / "odd", AppGrid(tamper=tamper), start, rounds=2)
    without = run(tmp_path / "without", AppGrid(CLIENTS // 2), start, rounds=2)
    assert torch.equal(vector(odd.arrays), vector(without.arrays))
    assert events(tmp_path / "odd") == events(tmp_path / "without")
    assert not torch.equal(vector(odd.arrays), vector(run(tmp_path / "all", rounds=2).arrays))


@pytest.mark.parametrize("delay", [0.2, 5.0])
def test_a_slow_client_counts_if_it_answers_in_time_and_never_later(delay: float, tmp_path: Path) -> None:
    class Slow(AppGrid):
        def __init__(self) -> None:
            super().__init__()
            self.since: dict[str, float] = {}

        def push_messages(self, messages: Any) -> Any:
            batch = list(messages)
            stored = super().push_messages(batch)  # the clients answer here
            self.since |= {message.metadata.message_id: time.monotonic() for message in batch}
            self.slow = {m.metadata.message_id for m in batch if m.metadata.dst_node_id > CLIENTS // 2}
            return stored

        def pull_messages(self, message_ids: Any) -> Any:
            now = time.monotonic()
            late = {one for one in message_ids if one in self.slow and now < self.since[one] + delay}
            return super().pull_messages([one for one in message_ids if one not in late])

    settings = {"rounds": 2, "sampler": "everyone", "sampling_rate": 1.0}
    slow = run(tmp_path / "slow", Slow(), {"timeout": 0.5}, **settings)
    nodes = CLIENTS if delay < 0.5 else CLIENTS // 2
    wanted = run(tmp_path / "wanted", AppGrid(nodes), {"timeout": 5}, **settings)
    assert torch.equal(vector(slow.arrays), vector(wanted.arrays))
    assert events(tmp_path / "slow") == events(tmp_path / "wanted")


def test_replies_are_summed_as_they_come_and_not_kept() -> None:
    """However many clients there are, few replies are in memory at once."""
    initial_arrays = ArrayRecord({"w": Array(np.zeros(1000, np.float32))})
    living, most = Counter[str](), list[int]()

    class Lazy:
        """Clients whose replies are made when they are fetched."""

        def __init__(self, nodes: int) -> None:
            self.nodes, self.sent = nodes, dict[str, Message]()

        def get_node_ids(self) -> list[int]:
            return list(range(1, self.nodes + 1))

        def push_messages(self, messages: Any) -> list[str]:
            for message in messages:
                message.metadata.__dict__["_message_id"] = f"{len(self.sent)}"
                self.sent[message.metadata.message_id] = message
            return list(self.sent)

        def pull_messages(self, message_ids: Any) -> Any:
            most.append(living["replies"])
            for name in message_ids:
                own = Array(np.ones(1000, np.float32))
                living["replies"] += 1
                weakref.finalize(own, living.subtract, ["replies"])
                yield Message(RecordDict({"arrays": ArrayRecord({"w": own})}), reply_to=self.sent.pop(name))

    AppGrid(1)  # as in a ServerApp's process
    peaks = []
    for nodes in (300, 1200):
        grid, arrays = Lazy(nodes), AppArrays(initial_arrays)

        def messages(number: int, record: ArrayRecord, asked: Any) -> list[Message]:
            return [Message(RecordDict({"arrays": record}), node, "train") for node in asked]

        engine = AppEngine(grid, arrays, messages, grid.get_node_ids, timeout=5)
        query = Query((torch.zeros(1000),), (SumBlock((Term(clip_norm=1.0),)),))
        shard = Shard(0, np.arange(nodes), parties=nodes)
        [total] = engine.gather(SumRequest(query, 0, (shard,))).sums
        assert float(total.norm()) == pytest.approx(nodes)
        peaks.append(max(most))
        most.clear()
    assert max(peaks) <= 20


def test_an_app_that_always_fails_ends_the_run(tmp_path: Path) -> None:
    everyone = {"sampler": "everyone", "sampling_rate": 1.0}
    with pytest.raises(ArgumentError, match="Every client that was asked so far failed with Flower's error"):
        run(tmp_path / "run", AppGrid(tamper=lambda partition, reply: failed(reply)), **everyone)
    assert len(events(tmp_path / "run")) == 2
    one = AppGrid(tamper=lambda partition, reply: failed(reply) if partition else reply)
    run(tmp_path / "one", one, **everyone)
    assert len(events(tmp_path / "one")) == 4


def test_an_app_whose_clients_would_add_noise_is_named_at_its_first_reply(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="with private_mod the strategy needs placement='local'"):
        run(tmp_path / "run", NoisingGrid())


def test_epsilon_is_a_tenth_of_what_flowers_wrapper_spends() -> None:
    """At q 0.1, z 1, T 100, delta 1e-5: a certified upper bound here, a certified lower bound there."""
    settings = {"population": 1000, "sampling_rate": 0.1, "rounds": 100, "delta": 1e-5}
    strategy = PrivateStrategy(**settings, epsilon=7.06, optimizer="dp-sgd")
    z = strategy.plan.mechanism.scale
    assert 0.99 < z < 1.01
    ours = epsilon(strategy.plan.events, 1e-5, "pld")
    config = PrivacyConfig(1e-5, 1000, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    wrapper = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), z, 1.0, 100, accountant=FlowerAccountant(config)
    )
    wrapper.accountant.compose(GaussianPrivacyEvent(z, 100, 1000), 100)
    wrappers = epsilon([Event(z, "none", "add-remove", 1.0, count=100)], 1e-5, "pld")
    assert wrapper.privacy_spent().epsilon == pytest.approx(wrappers.epsilon)
    assert (ours.kind, wrappers.kind) == ("bound", "bound")
    assert ours.epsilon <= 7.06
    assert wrappers.epsilon_lower > 10 * ours.epsilon


def test_a_huge_reply_moves_the_model_by_its_clip_norm_and_weights_are_ignored(tmp_path: Path) -> None:
    """Sensitivity: with the same noise, one client more or less moves the mean by at most C / (q N)."""

    def far(partition: int, reply: Message) -> Message | None:
        if partition:
            return reply
        reply.content["metrics"]["num-examples"] = 10**9
        return changed(reply, lambda a: [values.__imul__(-1e6) for values in a.values()])

    def absent(partition: int, reply: Message) -> Message | None:
        return reply if partition else None

    everyone = {"sampler": "everyone", "sampling_rate": 1.0, "rounds": 1, "learning_rate": 1.0}
    start = {"timeout": 0.3}
    with_it = vector(run(tmp_path / "far", AppGrid(tamper=far), start, **everyone).arrays)
    without = vector(run(tmp_path / "absent", AppGrid(tamper=absent), start, **everyone).arrays)
    assert float((with_it - without).norm()) == pytest.approx(0.5 / CLIENTS, rel=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_noise_does_not_depend_on_who_answers(share: float, tmp_path: Path) -> None:
    """Clients that return what they were sent add nothing: a step is noise of std z C / (q N) in each number.

    Flake rate: 7,850 coordinates and 4 rounds put the relative error of the std at 0.4 %; 4 % are 10 stds.
    """

    def tamper(partition: int, reply: Message) -> Message | None:
        return reply if partition < share * CLIENTS else None

    class Idle(AppGrid):
        def _answer(self, message: Message) -> Message:
            return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    settings = {**SETTINGS, "learning_rate": 1.0, "seed": -1}
    strategy = PrivateStrategy(population=CLIENTS, folder=tmp_path / "run", start_timeout=0.0, **settings)
    result = strategy.start(Idle(tamper=tamper), initial()[0], timeout=0.3)
    moved = (vector(result.arrays).double() - initial()[1].double()).square().mean() / 4
    wanted = strategy.plan.mechanism.scale * 0.5 / (0.3 * CLIENTS)
    assert float(moved.sqrt()) == pytest.approx(wanted, rel=0.04)


def test_integers_statistics_and_frozen_arrays_stay_as_the_server_has_them(tmp_path: Path) -> None:
    arrays, _ = initial()
    extra = {
        "bn.running_mean": np.full(3, 2.0, np.float32),
        "bn.num_batches_tracked": np.array(7),
        "head": np.ones(4, np.float16),
    }
    more = ArrayRecord({**arrays, **{name: Array(values) for name, values in extra.items()}})

    def tamper(partition: int, reply: Message) -> Message | None:
        own = dict(reply.content["arrays"])
        own |= {name: Array(np.asarray(values + 1, values.dtype)) for name, values in extra.items()}
        reply.content["arrays"] = ArrayRecord(own)
        return reply

    class Grid(AppGrid):
        def _answer(self, message: Message) -> Message:
            message.content["arrays"] = ArrayRecord(
                {k: v for k, v in message.content["arrays"].items() if k in arrays}
            )
            return super()._answer(message)

    strategy = PrivateStrategy(
        population=CLIENTS, folder=tmp_path / "run", start_timeout=0.0, frozen="head", **SETTINGS
    )
    result = strategy.start(Grid(tamper=tamper), more, timeout=5)
    for name, values in extra.items():
        assert np.array_equal(result.arrays[name].numpy(), values)
        assert result.arrays[name].numpy().dtype == values.dtype
    plain = run(tmp_path / "plain")
    trained = ArrayRecord({name: result.arrays[name] for name in arrays})
    assert torch.equal(vector(trained), vector(plain.arrays))
    assert (
        "not trained: bn.running_mean, bn.num_batches_tracked, head"
        in (tmp_path / "run/report.md").read_text()
    )


def test_an_interrupted_run_resumes_to_the_same_model(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")

    class Stopping(AppGrid):
        def push_messages(self, messages: Any) -> Any:
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().push_messages(messages)

    run(tmp_path / "cut", Stopping())
    report = json.loads((tmp_path / "cut/report.json").read_text())
    assert report["result"]["stopped"] == "interrupted"
    assert len(events(tmp_path / "cut")) == 3  # the third was charged, and its answer is lost
    with pytest.raises(ArgumentError, match=r"epsilon is 9\.0; it must be as it was to resume"):
        run(tmp_path / "cut", resume=True, epsilon=9.0)
    resumed = run(tmp_path / "cut", resume=True)
    assert len(events(tmp_path / "cut")) == 4
    assert load_result(tmp_path / "cut").epsilon <= 8
    assert not torch.equal(vector(resumed.arrays), vector(whole.arrays))  # one release was lost


def test_a_folder_in_use_is_refused_by_the_argument_that_named_it(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(ArgumentError, match=r"^folder is .*\(or give overwrite=True\)$"):
        PrivateStrategy(population=CLIENTS, folder=tmp_path, **SETTINGS)


def test_client_metrics_are_dropped_unless_they_are_let_through(tmp_path: Path) -> None:
    def started(folder: str, **given: Any) -> Result:
        wrapped = PrivateStrategy.wrap(
            FedAvg(fraction_evaluate=0.0),
            population=CLIENTS,
            folder=tmp_path / folder,
            start_timeout=0.0,
            **given,
            **SETTINGS,
        )
        return wrapped.start(AppGrid(), initial()[0], timeout=5)

    closed = started("closed")
    assert not closed.train_metrics_clientapp
    assert not closed.evaluate_metrics_clientapp
    shown = started("open", client_metrics="non-private")
    assert shown.train_metrics_clientapp[1]["train_loss"] == 0.5
    report = (tmp_path / "open/report.md").read_text()
    assert "client metrics are NOT PRIVATE" in report
    assert "let through without noise" in report


def test_a_wrapped_strategy_says_what_clients_are_sent(tmp_path: Path) -> None:
    seen = set()

    class Grid(AppGrid):
        def _answer(self, message: Message) -> Message:
            config = message.content["config"]
            seen.add((config["proximal-mu"], config["lr"], config["server-round"]))
            return super()._answer(message)

    strategy = PrivateStrategy.wrap(
        FedProx(proximal_mu=0.25), population=CLIENTS, folder=tmp_path / "run", start_timeout=0.0, **SETTINGS
    )
    strategy.start(Grid(), initial()[0], timeout=5, train_config=ConfigRecord({"lr": 0.1}))
    assert seen == {(0.25, 0.1, number) for number in (1, 2, 3, 4)}
    plain = run(tmp_path / "plain")
    torch.testing.assert_close(load_result(tmp_path / "run").params, vector(plain.arrays))


def test_the_log_says_nothing_of_who_took_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        run(tmp_path / "run", AppGrid(tamper=lambda k, reply: reply if k % 2 else failed(reply)))
    assert "epsilon" in caplog.text
    assert "ampled" not in caplog.text.replace("sampled independently", "")
    assert "failure" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sampling_rate": 2.0}, "sampling_rate is 2.0; it must be at most 1"),
        ({"population": 0}, "population is 0; it must be"),
        ({"epsilon": -1.0}, "epsilon is -1.0"),
        ({"unit": "example"}, "unit is 'example'; it must be client"),
        ({"model": "cnn"}, "model is no setting of a Flower app's strategy"),
        ({"clients": 5}, "population is the number of clients"),
        ({"clip_nrm": 5}, "there is no argument"),
        ({"optimizer": "adadps"}, "do without public examples"),
        ({"optimizer": 3}, "have the methods init, query, update, planned"),
        ({"client_metrics": "all"}, "client_metrics is 'all'"),
        ({"strategy": Krum()}, "strategy is 'Krum'"),
        ({"strategy": FedMedian()}, "strategy is 'FedMedian'"),
        ({"srm_gamma": 0.7}, "srm_gamma"),
        ({"resume": True, "folder": None}, "folder is None"),
    ],
)
def test_errors_come_before_any_client_is_asked(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        PrivateStrategy(**{**SETTINGS, "population": CLIENTS, **changes})
    assert text in str(error.value)


def test_a_strategy_needs_a_population_and_wraps_no_krum() -> None:
    with pytest.raises(TypeError, match="'population'"):
        PrivateStrategy(**SETTINGS)
    with pytest.raises(ArgumentError, match="strategy is 'Krum'; it must be FedAvg"):
        PrivateStrategy.wrap(Krum(), population=CLIENTS, **SETTINGS)


def test_bad_starts_are_refused_before_any_client_is_asked(tmp_path: Path) -> None:
    grid = AppGrid()
    with pytest.raises(ArgumentError, match="num_rounds is 9; it must be at most rounds=4"):
        run(tmp_path / "a", grid, {"num_rounds": 9})
    with pytest.raises(ArgumentError, match="frozen is 'nothing'"):
        run(tmp_path / "b", grid, frozen="nothing")
    with pytest.raises(ArgumentError, match="population is 3; it must count every client"):
        run(tmp_path / "c", grid, population=3)
    assert not grid.asked
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("lacks an array", "its arrays lack"),
        ("has another array", "its arrays also have more"),
        ("has another shape", "has another shape"),
        ("holds integers", "must hold"),
    ],
)
def test_an_app_that_does_not_fit_is_named_at_its_first_reply(what: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=text):
        run(tmp_path / "run", AppGrid(tamper=ODD[what]))
    assert json.loads((tmp_path / "run/report.json").read_text())["result"]["stopped"] == "failed"


def test_two_array_records_are_named_at_the_first_reply(tmp_path: Path) -> None:
    def tamper(partition: int, reply: Message) -> Message | None:
        reply.content["more"] = ArrayRecord()
        return reply

    with pytest.raises(ArgumentError, match="a reply has 2 ArrayRecords; a client must return exactly one"):
        run(tmp_path / "run", AppGrid(tamper=tamper))


def test_a_node_that_comes_later_takes_no_place_of_another(tmp_path: Path) -> None:
    """Else an added client would move a sum by its own part and by that of the one that it displaces."""
    strategy = PrivateStrategy(**{**SETTINGS, "population": 3, "folder": tmp_path / "run"})
    asked = [
        strategy._clients(SimpleNamespace(get_node_ids=lambda connected=connected: connected))  # type: ignore[arg-type]
        for connected in ([90, 50, 70], [10, 50, 70, 90], [10, 50, 90], [10, 50, 70, 90])
    ]
    assert asked == [[50, 70, 90], [50, 70, 90], [10, 50, 90], [10, 50, 90]]
