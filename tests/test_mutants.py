"""The list of planted faults fits today's code, and the runner tells which of them are caught."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import mutants
from helpers.mutants import BROKEN, CAUGHT, NOT_APPLICABLE, SURVIVED, Copy, Mutant, MutantError

PROJECT = """
[tool.hatch.build.targets.sdist]
include = ["fedpriv", "tests", "README.md"]

[tool.pytest.ini_options]
filterwarnings = ["error"]
"""
CODE = "def clipped(value):\n    return min(value, 1.0)\n"
TEST = "from fedpriv.clip import clipped\n\n\ndef test_clips():\n    assert clipped(3.0) == 1.0\n"
ENTRY = """
[[mutant]]
id = "{id}"
file = "fedpriv/clip.py"
before = "{before}"
after = "{after}"
tests = ["{tests}"]
promise = "It clips."
"""
SEEN = ("fedpriv/mechanism/", "fedpriv/clipping/", "fedpriv/federated/")  # what decides what is released
FAULT = Mutant("big", "fedpriv/clip.py", "1.0", "2.0", ("tests/test_clip.py",), "It clips.")


def entry(**changes: str) -> str:
    fields = {"id": "big", "before": "1.0", "after": "2.0", "tests": "tests/test_clip.py"}
    return ENTRY.format(**{**fields, **changes})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project with one mutant."""
    root = tmp_path / "tree"
    files = {
        "pyproject.toml": PROJECT,
        "fedpriv/__init__.py": "",
        "fedpriv/clip.py": CODE,
        "tests/test_clip.py": TEST,
        "tests/mutants.toml": entry(),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@functools.cache
def functions(path: Path) -> set[str]:
    """The test functions, and the methods as Class::method, of a file."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{method}" for method in functions_of(node)}
    return found


def functions_of(node: ast.ClassDef) -> set[str]:
    """The methods of a class; those of a method's suite where it inherits them."""
    own = {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
    inherits = any(isinstance(base, ast.Name) and base.id == "MethodSuite" for base in node.bases)
    suite = mutants.ROOT / "tests/helpers/methods_suite.py"
    return own | ({name.split("::")[1] for name in functions(suite) if "::" in name} if inherits else set())


def test_every_mutant_applies_to_todays_code() -> None:
    """A change of the code that a mutant replaces updates its entry in tests/mutants.toml."""
    listed = mutants.read()
    assert len(listed) >= 71
    for mutant in listed:
        assert mutant.file.startswith("fedpriv/")
        assert mutant.before != mutant.after
        compile(mutant.planted((mutants.ROOT / mutant.file).read_text()), mutant.id, "exec")
        assert mutant.tests
        assert mutant.promise.endswith(".")
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert not name or name in functions(mutants.ROOT / path), f"{mutant.id}: there is no {test}"


def test_faults_that_an_adversary_could_see_name_their_audit() -> None:
    """`python tests/helpers/audit_faults.py --write NAME` adds a row to tests/audits.json."""
    rows = {row["fault"] for row in json.loads((mutants.ROOT / "tests/audits.json").read_text())["faults"]}
    for mutant in mutants.read():
        if mutant.file.startswith(SEEN):
            assert mutant.audit, f"{mutant.id}: needs a key audit"
        if mutant.audit and not mutant.audit.startswith(mutants.NO_AUDIT):
            assert mutant.audit in rows, f"{mutant.id}: no audit is measured of {mutant.audit!r}"


def test_a_list_with_wrong_entries_is_refused(tree: Path) -> None:
    for text, said in (
        (entry() + entry(after="3.0"), "ids that occur twice: big"),
        (entry() + 'why = "no such field"\n', "big: missing or unknown fields: why"),
        (entry().replace('promise = "It clips."', ""), "big: missing or unknown fields: promise"),
    ):
        with pytest.raises(MutantError, match=said):
            mutants.parsed(text)
    for text, count in (("1.00 1.0", 2), ("nothing", 0)):
        with pytest.raises(MutantError, match=f"big: its text occurs {count} times in fedpriv/clip.py"):
            FAULT.planted(text)


def test_mutants_are_selected_by_id_file_and_folder() -> None:
    listed = [FAULT, replace(FAULT, id="other"), replace(FAULT, id="third", file="fedpriv/far/away.py")]

    def ids(*names: str) -> list[str]:
        return [mutant.id for mutant in mutants.selected(listed, names)]

    assert ids() == ["big", "other", "third"]
    assert ids("other") == ["other"]
    assert ids("fedpriv/clip.py") == ["big", "other"]
    assert ids("fedpriv/far/") == ids("fedpriv/far") == ["third"]
    assert ids("fedpriv") == ["big", "other", "third"]
    with pytest.raises(MutantError, match="fedpriv/fa is neither"):
        ids("big", "fedpriv/fa")


def git(root: Path, *arguments: str) -> None:
    about = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *about, *arguments], cwd=root, check=True, capture_output=True)


def committed(root: Path) -> None:
    git(root, "add", ".")
    git(root, "commit", "-m", "a change")


def test_those_that_changed_are_found_since_a_commit(tree: Path) -> None:
    def ids(since: str | None = None) -> list[str]:
        return [mutant.id for mutant in mutants.changed(mutants.read(tree), since, tree)]

    assert ids() == ["big"]  # without a repository all count as changed
    git(tree, "init")
    committed(tree)
    assert mutants.base(tree) is None  # one commit only, as in a shallow clone
    assert ids() == ["big"]
    (tree / "README.md").write_text("text")
    committed(tree)
    assert ids() == []
    (tree / "fedpriv/clip.py").write_text(CODE + "\n")  # not committed yet
    assert ids() == ["big"]
    committed(tree)
    assert ids() == ["big"]
    assert ids("HEAD") == []
    (tree / "tests/test_clip.py").write_text(TEST + "\n")
    assert ids("HEAD") == ["big"]
    committed(tree)
    (tree / "tests/mutants.toml").write_text(entry() + entry(id="new"))
    assert ids("HEAD") == ["new"]
    git(tree, "checkout", "-b", "branch")
    committed(tree)
    (tree / "README.md").write_text("more")
    committed(tree)
    assert ids() == ["new"]  # since the branch left main
    with pytest.raises(MutantError, match="nowhere is no commit"):
        ids("nowhere")


@pytest.mark.parametrize(
    ("status", "verdict"), [(1, CAUGHT), (0, SURVIVED), (2, BROKEN), (4, BROKEN), (5, BROKEN), (None, BROKEN)]
)
def test_only_a_failed_test_catches(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int | None, verdict: str
) -> None:
    """Not an error of collection, a test that is not there or is slow, or one that does not end."""
    copy = Copy(tree, tmp_path / "copy")
    code = copy.folder / "fedpriv/clip.py"

    def test(copy: Copy, tests: Sequence[str]) -> tuple[int | None, str]:
        assert (code.read_text(), tests) == (CODE.replace("1.0", "2.0"), FAULT.tests)
        return status, "the output"

    monkeypatch.setattr(Copy, "test", test)
    copy._tried = True
    assert copy.judge(FAULT).verdict == verdict
    assert code.read_text() == CODE
    monkeypatch.setattr(Copy, "test", None)
    for wrong in (replace(FAULT, before="3.0"), replace(FAULT, file="fedpriv/gone.py")):
        assert copy.judge(wrong).verdict == NOT_APPLICABLE
    assert (tree / "fedpriv/clip.py").read_text() == CODE


def test_tests_that_fail_without_a_fault_catch_none(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of a pytest that cannot begin."""
    copy = Copy(tree, tmp_path / "copy")
    monkeypatch.setattr(Copy, "test", lambda copy, tests: (1, "no plugin"))
    outcome = copy.judge(FAULT)
    assert outcome.verdict == BROKEN
    assert outcome.output == "its tests fail without it:\nno plugin"


@pytest.mark.slow
def test_a_fork_has_the_status_of_its_tests(tree: Path, tmp_path: Path) -> None:
    """Also where warnings are errors, and where pytest itself breaks."""
    copy = Copy(tree, tmp_path / "copy")
    try:
        assert copy.test(FAULT.tests)[0] == 0
        with copy.with_fault(FAULT):
            status, output = copy.test(FAULT.tests)
        assert (status, "1 failed" in output) == (1, True)
        (copy.folder / "tests/conftest.py").write_text("import os\n\nos._exit(3)\n")
        assert copy.test(FAULT.tests)[0] == 3
        (copy.folder / "tests/conftest.py").write_text("def pytest_configure():\n    raise SystemExit(1)\n")
        assert copy.test(FAULT.tests)[0] not in (0, 1)
    finally:
        copy.close()


def test_the_counts_of_a_whole_run_are_written_for_the_page(tree: Path) -> None:
    results = tree / mutants.RESULTS
    results.write_text('{"cases": {}}')
    mutants.write(Counter({CAUGHT: 2, SURVIVED: 1}), 3, tree)
    written = json.loads(results.read_text())
    assert written.pop("cases") == {}
    assert {key: written["mutants"][key] for key in ("listed", "caught", "minutes")} == {
        "listed": 3,
        "caught": 2,
        "minutes": 3,
    }
    with pytest.raises(SystemExit):
        mutants.main(["--write", "big"], tree)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_command_tells_what_it_found(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six runs of pytest in copies of the tree."""

    def run(text: str, *arguments: str) -> tuple[int, str]:
        (tree / "tests/mutants.toml").write_text(text)
        return mutants.main(["--jobs", "1", *arguments], tree), capsys.readouterr().out

    both = entry() + entry(id="small", before="value, 1.0", after="1.0, value")
    status, said = run(both)
    assert (status, "1 caught, 1 SURVIVED" in said) == (1, True)
    assert "small\n    fedpriv/clip.py: It clips." in said
    status, said = run(both, "big")
    assert (status, "\n1 caught" in said) == (0, True)
    assert run(both, "--changed", "--minutes", "0")[1].startswith("2 not run")
    assert run(both, "--list")[1].splitlines() == ["big: It clips.", "small: It clips."]
    assert run(both, "huge")[0] == 2
    assert run(entry(before="3.0"))[0] == 1
    monkeypatch.setattr(mutants, "_LIMIT", 5.0)
    endless = entry(after="1.0) if value < 3 else __import__('time').sleep(600")
    status, said = run(endless)
    assert (status, "the tests did not end in time" in said, "1 BROKEN" in said) == (1, True, True)
    (tree / "tests/test_clip.py").write_text(TEST.replace("== 1.0", "== 0.5"))
    status, said = run(both)
    assert (status, "the tests do not pass without a fault" in said) == (2, True)
