"""The wheel in environments of its own: it has its data, and its demo runs from an empty folder."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = "Scripts" if os.name == "nt" else "bin"
INSTALLING, RUNNING = 900.0, 240.0  # seconds that an installation and a demo may take

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.xdist_group("wheel")]


def without_checkout() -> dict[str, str]:
    """The environment's variables without those that name a checkout or its data."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FEDPRIV_DATA")}


def run(command: list[str | Path], folder: Path, limit: float | None = None) -> str:
    """The output of a command that sees no checkout, and that takes at most ``limit`` seconds."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=without_checkout(),
        capture_output=True,
        text=True,
        check=False,
        timeout=limit,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def unreachable(python: Path, folder: Path) -> str:
    """Why pip cannot reach its index, or nothing: it asks for a small dependency."""
    look: list[str | Path] = [
        python,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--retries",
        "0",
        "mpmath",
    ]
    try:
        done = subprocess.run(
            look, cwd=folder, env=without_checkout(), capture_output=True, text=True, check=False, timeout=60
        )
    except subprocess.TimeoutExpired:
        return "pip's index does not answer"
    return "" if done.returncode == 0 else f"pip cannot reach its index: {done.stderr.strip()[-200:]}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment ``venv``, and ``dist`` with what was built of the last commit."""
    folder = tmp_path_factory.mktemp("wheel")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip("needs a git clone")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
        tree.extractall(folder / "tree", filter="data")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / BIN / "python"
    if why := unreachable(python, folder):
        pytest.skip(why)
    run([python, "-m", "pip", "install", "--quiet", "hatchling"], folder)
    run([python, "-m", "hatchling", "build", "--directory", folder / "dist"], folder / "tree")
    return folder


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """The environment with the wheel. It borrows the dependencies of this one, but not its fedpriv.

    A folder that a .pth file names is searched; its own .pth files, as of an editable install, are not read.
    """
    python = built / "venv" / BIN / "python"
    [wheel] = (built / "dist").glob("*.whl")
    run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], built)
    own = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], built).strip()
    (Path(own) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_has_its_data_and_nothing_of_the_tests(built: Path) -> None:
    [wheel] = (built / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "fedpriv/py.typed" in names
    cards = {path.name for path in (ROOT / "datasets").glob("*.toml")}
    assert {Path(name).name for name in names if name.startswith("fedpriv/_datasets/")} == cards
    assert {name.split("/")[0] for name in names} <= {
        "fedpriv",
        f"fedpriv-{wheel.name.split('-')[1]}.dist-info",
    }


def test_the_source_distribution_has_the_documentation_and_the_tests(built: Path) -> None:
    [source] = (built / "dist").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "mkdocs.yml",
        "docs/index.md",
        "tests/conftest.py",
        "datasets/mnist.toml",
    } <= names


def test_the_demo_runs_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    where = run([installed, "-c", "import fedpriv; print(fedpriv.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parents[1])
    # The command of `make demo`, with fewer rounds.
    demo = [
        installed.with_name("fedpriv"),
        "simulate",
        "--out",
        "runs/demo",
        "--overwrite",
        "--set",
        "rounds=3",
    ]
    run(demo, tmp_path)
    report = json.loads((tmp_path / "runs/demo/report.json").read_text())
    assert report["result"]["stopped"]
    assert (tmp_path / "runs/demo/model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_data_and_cards_are_found_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    lines = (
        "from fedpriv.data import load; from fedpriv.data.catalogue import card;"
        "print(load('digits').size, card('mnist').name)"
    )
    assert run([installed, "-c", lines], tmp_path).split() == ["1437", "mnist"]


@pytest.fixture
def empty_environment(tmp_path: Path) -> Iterator[Path]:
    """The interpreter of an environment with pip alone, which is deleted afterwards: it gets large."""
    venv.create(tmp_path / "venv", with_pip=True)
    yield tmp_path / "venv" / BIN / "python"
    shutil.rmtree(tmp_path / "venv")


@pytest.mark.exhaustive
def test_the_demo_runs_in_an_environment_that_pip_filled(
    built: Path, empty_environment: Path, tmp_path: Path
) -> None:
    """The wheel and what it declares, from pip's own index, and nothing else. It takes minutes."""
    python, empty = empty_environment, tmp_path / "empty"
    [wheel] = (built / "dist").glob("*.whl")
    run([python, "-m", "pip", "install", "--quiet", wheel], tmp_path, limit=INSTALLING)
    run([python, "-m", "pip", "check"], tmp_path)
    empty.mkdir()
    demo = [python.with_name("fedpriv"), "simulate", "--out", "runs/demo", "--set", "rounds=3"]
    run(demo, empty, limit=RUNNING)
    report = json.loads((empty / "runs/demo/report.json").read_text())
    assert report["result"]["stopped"] == "rounds"
