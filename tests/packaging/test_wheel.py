"""The wheel in an environment of its own: it has its data, and its demo runs from an empty folder."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = "Scripts" if os.name == "nt" else "bin"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.xdist_group("wheel")]


def run(command: list[str | Path], folder: Path) -> str:
    """The output of a command that sees no checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FEDPRIV_DATA")}
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
