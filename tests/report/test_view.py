"""``fedpriv view``: the page with live runs, by HTTP and in a browser."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedpriv
from fedpriv.report.page.server import Viewer

SMALL = {"model": "logistic", "clients": 300, "sampling_rate": 0.1, "rounds": 3, "engine": "in-process"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    fedpriv.simulate(SMALL, evaluate_every=1, epsilon=2, folder=folder)
    return folder


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A folder with a run that has ended, and one that goes on and has been scored once."""
    root = tmp_path / "root"
    shutil.copytree(made, root / "ended")
    shutil.copytree(made, root / "going")
    config = (root / "going" / "config.toml").read_text().replace("epsilon = 2.0", "epsilon = 1.0")
    (root / "going" / "config.toml").write_text(config)
    (root / "going" / "report.json").unlink()
    lines = (root / "going" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (root / "going" / "metrics.jsonl").write_text(lines[0])
    return root


@pytest.fixture
def viewer(root: Path) -> Iterator[Viewer]:
    with Viewer(root) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def status(viewer: Viewer, path: str, method: str = "GET", host: str | None = None) -> int:
    """The status of a request whose path is sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", viewer.server_port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{viewer.server_port}")
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


def test_only_the_page_is_served_and_only_with_its_token(viewer: Viewer, root: Path) -> None:
    token = viewer.token
    (root.parent / "secret.txt").write_text("secret")
    for path in (
        "/",
        "/x/",
        f"/{token[:-1]}/",
        f"/{token}",
        f"/{token}/../../secret.txt",
        f"/{token}/%2e%2e/secret.txt",
        f"/{token}/..%2fsecret.txt",
        f"/{token}/ended/config.toml",
        f"/{token}//etc/passwd",
        f"/{token}/?x",
    ):
        assert status(viewer, path) == 404, path
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        assert status(viewer, f"/{token}/", method) == 501, method
    for host in ("evil.example", f"evil.example:{viewer.server_port}", "127.0.0.1"):
        assert status(viewer, f"/{token}/", host=host) == 403, host
    assert viewer.server_address[0] == "127.0.0.1"
    assert len(token) >= 32
    with Viewer(root) as other:
        assert other.token != token


def test_nothing_from_outside_is_shown_and_nothing_is_written(
    viewer: Viewer, root: Path, made: Path, rendered_pictures: None
) -> None:
    elsewhere = root.parent / "elsewhere"
    shutil.copytree(made, elsewhere)
    (root / "linked").symlink_to(elsewhere)
    shutil.copytree(made, root / "half")
    (root / "half" / "report.json").unlink()
    (root / "half" / "report.json").symlink_to(elsewhere / "report.json")
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    html = urllib.request.urlopen(viewer.address, timeout=60).read().decode()
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before
    assert "linked is left out: it has links that lead out" in html
    assert "half is left out: it has links that lead out" in html
    [content] = [part for part in html.split("<script") if part.startswith(' type="application/json"')]
    folders = {run["folder"] for run in json.loads(content.partition(">")[2].partition("</script>")[0])}
    assert folders == {str(root / "ended"), str(root / "going")}
    assert "connect-src 'self'" in html


def test_events_tell_of_a_run_that_goes_on(viewer: Viewer, root: Path, made: Path) -> None:
    with urllib.request.urlopen(f"{viewer.address}events", timeout=20) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        assert points(stream) == {"going": [1], "ended": [0, 1, 2, 3]}
        lines = (made / "metrics.jsonl").read_text().splitlines(keepends=True)
        with (root / "going" / "metrics.jsonl").open("a") as file:
            file.write(lines[1] + lines[2][:30])  # half a line
        assert points(stream)["going"] == [1, 2]


def points(stream: Any) -> dict[str, list[int]]:
    """The rounds of each run in the next event."""
    while not (line := stream.readline().decode()).startswith("data: "):
        assert line
    return {Path(run["folder"]).name: [point[0] for point in run["points"]] for run in json.loads(line[6:])}


@pytest.fixture
def browser(viewer: Viewer, tmp_path: Path, rendered_pictures: None) -> Iterator[Callable[[str], Any]]:
    """Chromium with the page; gives what evaluates an expression in it."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    client = pytest.importorskip("websockets.sync.client", reason="websockets is not installed")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-port=0",
        "--remote-allow-origins=*",
    ]
    profile = tmp_path / "profile"
    command = [CHROMIUM, *flags, f"--user-data-dir={profile}", viewer.address]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = wait_for(lambda: (profile / "DevToolsActivePort").read_text().splitlines()[0])
        address = wait_for(lambda: page_of(port, viewer.address))
        with client.connect(address, max_size=None) as socket:
            yield lambda code: evaluated(socket, code)
    finally:
        process.terminate()
        process.wait(20)


def page_of(port: str, address: str) -> str:
    """The socket of the browser's tab with this address."""
    found = json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5).read())
    return next(tab["webSocketDebuggerUrl"] for tab in found if tab["url"] == address)


def wait_for(look: Callable[[], Any], seconds: float = 60) -> Any:
    """What ``look`` gives once it is something."""
    end = time.monotonic() + seconds
    while True:
        try:
            if found := look():
                return found
        except (OSError, IndexError, StopIteration):
            pass
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)


def evaluated(socket: Any, code: str) -> Any:
    socket.send(
        json.dumps(
            {"id": 1, "method": "Runtime.evaluate", "params": {"expression": code, "returnByValue": True}}
        )
    )
    while True:
        message = json.loads(socket.recv(timeout=30))
        if message.get("id") == 1:
            assert "exceptionDetails" not in message["result"], message
            return message["result"]["result"].get("value")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the browser is ended by a signal")
def test_a_browser_shows_live_runs_over_each_other(
    browser: Callable[[str], Any], root: Path, made: Path
) -> None:
    wait_for(lambda: browser("document.getElementById('state')?.textContent.startsWith('Live')"))
    assert browser("document.querySelectorAll('#chart polyline').length") == 2  # two runs overlay
    marks = "document.querySelectorAll('#chart .mark').length"
    assert browser(marks) == 1 + 4
    # A point shows its settings.
    browser("document.querySelector('#chart .mark').dispatchEvent(new MouseEvent('mouseenter')) && null")
    told = browser("document.querySelector('#chart output').textContent")
    assert "epsilon=1\n" in told
    assert "round 1, test accuracy" in told
    # A run in progress updates.
    lines = (made / "metrics.jsonl").read_text().splitlines(keepends=True)
    with (root / "going" / "metrics.jsonl").open("a") as file:
        file.write(lines[1])
    wait_for(lambda: browser(marks) == 2 + 4)
    # A run is taken off the chart, and put on it again.
    box = "document.querySelectorAll('#chart input')[0]"
    browser(f"{box}.click()")
    assert browser("document.querySelectorAll('#chart polyline').length") == 1
    browser(f"{box}.click()")
    assert browser("document.querySelectorAll('#chart polyline').length") == 2
    # The table sorts.
    browser("document.querySelector('table.sortable th button').click()")
    assert browser("document.querySelector('table.sortable th').getAttribute('aria-sort')") == "ascending"
    # A run that ends is told.
    shutil.copy(made / "report.json", root / "going" / "report.json")
    wait_for(lambda: "More runs have ended" in browser("document.getElementById('state').textContent"))
