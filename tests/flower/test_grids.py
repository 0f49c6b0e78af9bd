"""Both grids fulfil the contract of Flower's Grid; the Ray grid also cleans up after itself."""

import contextlib
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.run import Run
from helpers import echo_app as echo

from fedpriv._internal.validation import ArgumentError
from fedpriv.flower.grids.base import GridError, HostedGrid
from fedpriv.flower.grids.channel import Channels
from fedpriv.flower.grids.in_process import InProcessGrid, NodeError
from fedpriv.flower.grids.ray import RayGrid

APP = f"{echo.__name__}:app"


@pytest.fixture(scope="module", params=[InProcessGrid, RayGrid])
def grid(request: pytest.FixtureRequest) -> Iterator[HostedGrid]:
    if request.param is RayGrid:
        yield request.getfixturevalue("ray_grid")
        return
    with InProcessGrid(nodes=2, run_config={"lesson": "one"}, client_app=APP) as made:
        yield made


@pytest.fixture(scope="module")
def ray_grid(ray_instance: None) -> Iterator[RayGrid]:
    with RayGrid(nodes=2, run_config={"lesson": "one"}, client_app=APP, num_cpus=1) as made:
        yield made


def request(grid: HostedGrid, kind: str, node: int, content: RecordDict | None = None) -> Message:
    return grid.create_message(content or RecordDict(), kind, node, "group")


def test_nodes_are_numbered_partitions_with_the_run_config(grid: HostedGrid) -> None:
    replies = list(grid.send_and_receive([request(grid, "query", n) for n in grid.get_node_ids()]))
    fields = [reply.content["node"] for reply in replies]
    assert list(grid.get_node_ids()) == [1, 2]
    assert [info.node_id for info in grid.get_nodes()] == [1, 2]
    assert [field["partition-id"] for field in fields] == [0, 1]
    assert {field["num-partitions"] for field in fields} == {2}
    assert {field["lesson"] for field in fields} == {"one"}


def test_replies_come_in_the_order_of_the_messages_and_name_them(grid: HostedGrid) -> None:
    messages = [request(grid, "query", node) for node in (2, 1, 2)]
    replies = list(grid.send_and_receive(messages, timeout=30))
    assert [reply.metadata.src_node_id for reply in replies] == [2, 1, 2]
    sent = [message.metadata.message_id for message in messages]
    assert [reply.metadata.reply_to_message_id for reply in replies] == sent
    assert len(set(sent)) == 3
    assert {reply.metadata.group_id for reply in replies} == {"group"}


@pytest.mark.parametrize("size", [7, 2_000_000])  # inlined, and through the object store
def test_a_shared_record_reaches_every_node_intact(grid: HostedGrid, size: int) -> None:
    values = np.arange(size, dtype=np.float32)
    shared = ArrayRecord([values])
    contents = [RecordDict({"points": shared}) for _ in range(2)]
    messages = [request(grid, "train", n, c) for n, c in zip((1, 2), contents, strict=True)]
    for reply in grid.send_and_receive(messages, timeout=30):
        [doubled] = reply.content["points"].to_numpy_ndarrays()
        np.testing.assert_array_equal(doubled, 2 * values)


def test_pushed_messages_are_pulled_once(grid: HostedGrid) -> None:
    names = list(grid.push_messages([request(grid, "query", 1)]))
    replies: list[Message] = []
    while not replies:
        replies = list(grid.pull_messages(names))
    assert [reply.metadata.reply_to_message_id for reply in replies] == names
    assert list(grid.pull_messages(names)) == []
    assert list(grid.pull_messages(["never sent"])) == []


def test_messages_carry_the_run_id(grid: HostedGrid) -> None:
    grid.set_run(Run.create_empty(41))
    assert grid.run.run_id == 41
    [reply] = grid.send_and_receive([request(grid, "query", 1)])
    assert reply.metadata.run_id == 41


def test_an_unknown_node_is_refused(grid: HostedGrid) -> None:
    with pytest.raises(GridError, match=r"no node 3; nodes are 1\.\.2"):
        grid.push_messages([request(grid, "query", 3)])


NOT_AN_APP = APP.replace(":app", ":not_an_app")


@pytest.mark.parametrize(
    ("kind", "app", "error"),
    [
        (InProcessGrid, APP + "s", "Unable to load"),
        (InProcessGrid, NOT_AN_APP, "not a ClientApp"),
        (RayGrid, NOT_AN_APP, "not a ClientApp"),
        pytest.param(RayGrid, APP + "s", "Unable to load", marks=pytest.mark.slow),
    ],
)
def test_a_reference_that_is_no_client_app_is_refused(
    kind: Any, app: str, error: str, ray_instance: None
) -> None:
    with pytest.raises(GridError, match=error):
        kind(nodes=1, client_app=app, **({"num_cpus": 0.5} if kind is RayGrid else {}))


def test_zero_nodes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="nodes is 0"):
        InProcessGrid(nodes=0, client_app=APP)


@pytest.mark.parametrize("kind", ["train.fail", "train.unguarded"])
def test_the_in_process_grid_names_node_stage_and_cause(kind: str) -> None:
    grid = InProcessGrid(nodes=2, client_app=APP)
    with pytest.raises(NodeError, match=f"node 2 failed at '{kind}': ZeroDivisionError") as caught:
        grid.send_and_receive([request(grid, kind, 2)])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("kind", ["train.fail", "train.unguarded"])
def test_a_failing_app_answers_with_its_error_type_and_no_text(ray_grid: RayGrid, kind: str) -> None:
    [reply] = ray_grid.send_and_receive([request(ray_grid, kind, 1)], timeout=30)
    assert reply.has_error()
    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert reply.error.reason == "ZeroDivisionError"


@pytest.mark.slow
def test_a_dead_actor_is_an_error_reply_and_the_others_answer(ray_instance: None) -> None:
    with RayGrid(nodes=2, client_app=APP, num_cpus=0.5) as grid:
        for _ in range(2):  # when it dies, and afterwards
            dead, alive = grid.send_and_receive(
                [request(grid, "train.die", node) for node in (1, 2)], timeout=30
            )
            assert dead.error.code == ErrorCode.CLIENT_APP_CRASHED
            assert dead.metadata.src_node_id == 1
            assert alive.has_content()


@pytest.mark.slow
def test_a_message_that_kills_each_actor_is_an_error_in_the_end(ray_instance: None) -> None:
    with RayGrid(nodes=2, client_app=APP, num_cpus=0.5, stateless=True) as grid:
        messages = [request(grid, kind, node) for kind, node in (("train.die", 1), ("query", 2))]
        dead, alive = grid.send_and_receive(messages, timeout=120)
        assert dead.error.code == ErrorCode.CLIENT_APP_CRASHED
        assert alive.content["node"]["partition-id"] == 1
        replies = grid.send_and_receive([request(grid, "query", node) for node in (1, 2)], timeout=120)
        assert [reply.content["node"]["partition-id"] for reply in replies] == [0, 1]


def test_a_ray_of_this_machines_own_listens_on_loopback(ray_instance: None) -> None:
    assert {each["NodeManagerAddress"] for each in ray.nodes()} == {"127.0.0.1"}


@pytest.mark.slow  # starts its own actors
def test_without_sockets_all_messages_go_through_ray(
    ray_instance: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with RayGrid(nodes=1, client_app=APP, num_cpus=0.5) as grid:
        assert grid._channels is None
        [reply] = grid.send_and_receive([request(grid, "query", 1)], timeout=30)
        assert reply.has_content()


@pytest.mark.slow
def test_an_actor_that_cannot_listen_is_named(ray_instance: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(Channels):
        made = False  # the driver tries the sockets of this system first

        def __init__(self) -> None:
            super().__init__()
            self.made = True

        def address(self, node: int) -> str:
            return super().address(node) + "/elsewhere" * self.made

    monkeypatch.setattr("fedpriv.flower.grids.ray.Channels", Elsewhere)
    with pytest.raises(GridError, match="actor failed to start"):
        RayGrid(nodes=1, client_app=APP, num_cpus=0.5, start_timeout=300)


def test_small_messages_use_a_channel_until_one_is_large(ray_instance: None) -> None:
    """Messages after the large one are answered, too."""
    with RayGrid(nodes=1, client_app=APP, num_cpus=0.5) as grid:
        channels = grid._channels
        assert channels is not None
        for size, by_channel in ((7, True), (2_000_000, False), (7, False)):
            content = RecordDict({"points": ArrayRecord([np.ones(size, np.float32)])})
            names = list(grid.push_messages([request(grid, "train", 1, content)]))
            assert (set(names) == set(grid._pending)) != by_channel
            assert (1 in channels) == by_channel
            [reply] = grid._collect(names, timeout=30)
            assert reply.content["points"].to_numpy_ndarrays()[0].sum() == 2 * size


def test_waiting_is_bounded_and_late_replies_can_still_be_pulled(ray_grid: RayGrid) -> None:
    messages = [request(ray_grid, "train.sleep", node) for node in (1, 2)]
    [quick] = ray_grid.send_and_receive(messages, timeout=0.5)
    assert quick.metadata.src_node_id == 2
    late: list[Message] = []
    while not late:
        late = list(ray_grid.pull_messages([messages[0].metadata.message_id]))
    assert late[0].metadata.src_node_id == 1


def test_actors_are_processes_that_persist_with_their_share_of_threads(ray_grid: RayGrid) -> None:
    seen = []
    for _ in range(2):
        messages = [request(ray_grid, "query", node) for node in (1, 2)]
        seen.append([reply.content["node"] for reply in ray_grid.send_and_receive(messages)])
    pids = [[fields["pid"] for fields in fields_of] for fields_of in seen]
    assert pids[0] == pids[1]
    assert len({*pids[0], os.getpid()}) == 3
    assert {fields["threads"] for fields in seen[0]} == {1}


def test_more_resources_than_ray_has_are_refused(ray_instance: None) -> None:
    with pytest.raises(GridError, match="2 actors of 5 CPU each do not fit: Ray has 8 CPU"):
        RayGrid(nodes=2, client_app=APP, num_cpus=5)
    with pytest.raises(ArgumentError, match="num-gpus is -1"):
        RayGrid(nodes=1, client_app=APP, num_gpus=-1)


def test_a_grid_that_cannot_start_raises_in_time(ray_grid: RayGrid) -> None:
    with pytest.raises(
        GridError, match=r"did not start within 1 s; are Ray's .* engine=in-process needs no Ray"
    ):
        RayGrid(nodes=1, client_app=APP, num_cpus=8, start_timeout=1.0)


def test_closing_ends_the_actors_but_not_a_shared_ray(ray_instance: None) -> None:
    grid = RayGrid(nodes=1, client_app=APP, num_cpus=0.5)
    [reply] = grid.send_and_receive([request(grid, "query", 1)])
    grid.close()
    grid.close()
    assert ray.is_initialized()
    _wait_for_end(reply.content["node"]["pid"])


@pytest.mark.slow
def test_a_grid_ends_the_ray_that_it_started_and_is_silent() -> None:
    script = textwrap.dedent(
        f"""
        import ray
        from fedpriv.flower.grids.ray import RayGrid
        with RayGrid(nodes=1, client_app={APP!r}) as grid:
            message = grid.create_message(__import__("flwr.app").app.RecordDict(), "query", 1, "")
            [reply] = grid.send_and_receive([message], timeout=60)
            print(reply.content["node"]["pid"])
        print(ray.is_initialized())
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    pid, initialized = result.stdout.split()
    assert (result.stderr, initialized) == ("", "False")
    _wait_for_end(int(pid))


def _wait_for_end(pid: int) -> None:
    """Return when the process is gone or a zombie; the test's own time limit bounds the wait."""
    with contextlib.suppress(OSError):
        while True:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
            time.sleep(0.05)
