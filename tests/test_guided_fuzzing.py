"""`make fuzz`: every property of tests/fuzzing is a target; an input that fails is kept and repeated."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import guided_fuzzing
from helpers.guided_fuzzing import ROOT, TESTS, Target

PROPERTY = """
from helpers.fuzzing import amounts, for_all
from hypothesis import strategies as st

def refuse(data):
    if data[:1] == b"x":
        raise LookupError("it begins with x")

@amounts
def test_bytes_are_read(examples):
    for_all(examples, st.binary(), refuse, (b"a", b"bcd"))

@amounts
def test_choices_are_read(examples):
    for_all(examples, st.integers(0, 255), lambda number: refuse(bytes([number])))
"""
needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="needs atheris, which `make fuzz` installs"
)


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the script as `make fuzz` does."""
    command = [sys.executable, "-P", guided_fuzzing.__file__, *arguments]
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def there(tmp_path: Path) -> list[str]:
    """The options of a run on two properties that do not hold."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_small.py").write_text(PROPERTY)
    return [f"--tests={tmp_path / 'tests'}", f"--kept={tmp_path / 'kept'}", "--seconds=60"]


@pytest.mark.slow
def test_every_property_is_a_target() -> None:
    listed = fuzz("--list").stdout
    properties = set()
    for path in TESTS.glob("test_*.py"):
        for function in ast.parse(path.read_text()).body:
            used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            if isinstance(function, ast.FunctionDef) and used & {
                "for_all",
                "run_hostile",
                "given",
                "amounts",
            }:
                what = function.name.removeprefix("test_").replace("_", " ")
                properties.add(f"{path.stem.removeprefix('test_')}: {what}")
    assert len(properties) > 15
    assert {line.partition(" (")[0] for line in listed.splitlines()} == properties
    assert "data_files: a hostile file is refused in a sentence (IDX, gzipped)" in listed


def test_without_atheris_a_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert guided_fuzzing.main([]) == 2
    assert "`make fuzz` installs it on Linux" in capsys.readouterr().out


def test_what_names_no_target_and_no_input_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Target("small: bytes are read", "test", Path("kept"))]
    monkeypatch.setattr(guided_fuzzing, "targets", lambda *places: found)
    assert guided_fuzzing.main(["--list", "nothing-has-this-name"]) == 2
    assert capsys.readouterr().out.startswith("No target's name contains nothing-has-this-name;")
    assert guided_fuzzing.main(["--repeat", __file__]) == 2
    assert "is no file in a target's folder" in capsys.readouterr().out


@pytest.mark.parametrize(("content", "status"), [(b"x1", 1), (b"a1", 0)])
@pytest.mark.slow
def test_an_input_is_repeated_without_atheris(
    there: list[str], tmp_path: Path, content: bytes, status: int
) -> None:
    path = tmp_path / "kept/small-bytes-are-read/crash-1"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    done = fuzz(*there, "--repeat", str(path))
    assert done.returncode == status
    assert done.stdout.endswith(f"small: bytes are read: the input {'fails' if status else 'passes'}.\n")
    assert ("LookupError: it begins with x" in done.stdout) == bool(status)


@needs_atheris
@pytest.mark.parametrize("kind", ["bytes", "choices"])
@pytest.mark.slow
def test_an_input_that_fails_is_kept_and_repeated(there: list[str], kind: str) -> None:
    done = fuzz(*there, kind)
    told = re.search(r"fails: LookupError: it begins with x. Repeat it with `make fuzz '(.*)'`", done.stdout)
    assert told, done.stdout + done.stderr
    assert done.returncode == 1
    again = fuzz(*there, *told[1].removeprefix("ARGS=").split())
    assert again.returncode == 1
    assert again.stdout.endswith(f"small: {kind} are read: the input fails.\n")


@needs_atheris
@pytest.mark.slow
def test_a_target_is_tried(tmp_path: Path) -> None:
    done = fuzz("--seconds=2", f"--kept={tmp_path}", "(IDX)")
    assert list(tmp_path.glob("*/corpus/*"))
    assert re.search(r"\(IDX\): [\d,]+ inputs, none fails\.\n1 of 1 targets passed\.\n$", done.stdout)
