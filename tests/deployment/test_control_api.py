"""Flower's Control API is asked as its own command asks it, here of Flower's own SuperLink over TLS."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from flwr.common.constant import NOOP_FLWR_AID
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.superlink import main
from helpers.hosted_grid import free_port

from fedpriv.deployment import control_api, flower_cli, keys
from fedpriv.deployment.flower_cli import FlowerError
from fedpriv.deployment.folders import Party, read_server
from fedpriv.deployment.provision import Request, provision

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")


class SuperLink:
    """Flower's SuperLink of a deployment's server, in a thread. ``state`` is what it knows."""

    def __init__(self, server: Party) -> None:
        self.server, app = server, main.create_app()
        app.state.enable_supernode_auth = True  # else it registers no keys
        self.state: Any = app.state.linkstate_factory.state()
        certificate, key = server.folder / "loopback.crt", server.folder / "loopback.key"
        port = int(server.facts["control-port"])
        config = uvicorn.Config(
            app, port=port, ws="none", log_level="error", ssl_certfile=certificate, ssl_keyfile=str(key)
        )
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._uvicorn.started:
            assert self._thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def add_run(self) -> int:
        """A run that no SuperExec starts."""
        nothing = (None, None, None)
        kind = TaskType.SERVER_APP
        return int(self.state.create_run(*nothing, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, kind))

    def close(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(30)


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SuperLink]:
    monkeypatch.setattr(main, "get_ee_linkstate_db", lambda: str(tmp_path / "state.db"))
    provision(tmp_path / "d", Request(2, control_port=free_port()))
    made = SuperLink(read_server(tmp_path / "d"))
    yield made
    made.close()


def test_flower_is_the_version_whose_client_is_used() -> None:
    assert version("flwr").startswith(f"{control_api.FLWR}."), "look at fedpriv/deployment/control_api.py"


def test_keys_are_registered_once_and_unregistered(link: SuperLink) -> None:
    one, other = link.server.public_keys
    first, second = control_api.register(link.server, one), control_api.register(link.server, other)
    assert list(control_api.nodes(link.server).items()) == [(first, "registered"), (second, "registered")]
    with pytest.raises(FlowerError, match=r"^registering a node failed: .*already in use"):
        control_api.register(link.server, one)
    control_api.unregister(link.server, first)
    assert control_api.nodes(link.server) == {second: "registered"}
    with pytest.raises(FlowerError, match=r"^unregistering a node failed: "):
        control_api.unregister(link.server, first)


def test_runs_are_listed_newest_first_and_stopped(link: SuperLink) -> None:
    assert control_api.runs(link.server) == []
    first, second = link.add_run(), link.add_run()
    assert [(run["run-id"], run["status"]) for run in control_api.runs(link.server)] == [
        (second, "pending"),
        (first, "pending"),
    ]
    control_api.stop_run(link.server, first)
    [record] = control_api.runs(link.server, first)
    assert (record["run-id"], record["status"]) == (first, "finished:stopped")
    for ask in (lambda: control_api.runs(link.server, 7), lambda: control_api.stop_run(link.server, first)):
        with pytest.raises(FlowerError, match=r"^(listing the runs|stopping run \d+) failed: \w+"):
            ask()


@pytest.mark.slow
def test_the_answers_are_those_of_the_command(link: SuperLink) -> None:
    for path in link.server.public_keys:
        control_api.register(link.server, path)
    control_api.stop_run(link.server, link.add_run())
    link.add_run()
    own = control_api.runs(link.server)
    said = flower_cli.call(link.server, "list", flower_cli.CONNECTION)["runs"]
    assert [(str(run["run-id"]), run["status"]) for run in own] == [
        (run["run-id"], run["status"]) for run in said
    ]
    listed = flower_cli.call(link.server, "supernode", "list", flower_cli.CONNECTION)["nodes"]
    assert {int(node["node-id"]): node["status"] for node in listed} == control_api.nodes(link.server)


def test_who_is_not_the_server_is_not_asked(link: SuperLink) -> None:
    """Its certificate must be of the deployment's own authority, and something must listen there."""
    other = keys.pem(keys.make_authority("somebody else").certificate)
    link.server.loopback_roots.write_bytes(other)
    with pytest.raises(FlowerError, match="certificate verify failed"):
        control_api.nodes(link.server)
    link.close()
    with pytest.raises(FlowerError, match="the server does not run here: its SuperLink does not listen"):
        control_api.nodes(link.server)
