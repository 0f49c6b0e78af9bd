"""docs/trust.md counts tests that exist, and its results are of all of them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from helpers import audit_faults, trust
from helpers.scripts import script

from fedpriv.auditing.views import View

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("test", sorted({test for tests in trust.kinds().values() for test in tests}))
def test_every_counted_test_exists(test: str) -> None:
    file, _, function = test.partition("::")
    text = (ROOT / file).read_text()
    assert f"def {function}(" in text if function else "def test_" in text


def test_the_results_have_every_kind_and_reader() -> None:
    results = json.loads(trust.RESULTS.read_text())
    assert list(results["cases"]) == list(trust.kinds())
    assert min(results["cases"].values()) > 0
    counted = {name.split(",")[0] for name in results["inputs"]}
    assert {
        "IDX",
        "NPZ",
        "zip",
        "tar",
        "ledger",
        "--set",
        "run-config",
        "messages",
        "forged sizes",
    } <= counted


def test_every_fuzzed_reader_is_counted() -> None:
    """`python tests/helpers/trust.py --only "hostile inputs"` counts a new one."""
    calls = [
        node
        for path in (ROOT / trust.FUZZING).glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reader"
    ]
    names = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert len(names) > 20
    assert names <= set(json.loads(trust.RESULTS.read_text())["inputs"])


def test_the_measured_faults_are_those_of_the_audits_tests() -> None:
    """`python tests/helpers/audit_faults.py --write NAME` measures a new one."""
    rows = json.loads(audit_faults.RESULTS.read_text())["faults"]
    faults = {fault.name: fault.sees.value for fault in audit_faults.faults()}
    assert {row["fault"]: row["adversary"] for row in rows} == faults
    assert all(row["units"] and row["units"] <= row["tried"] for row in rows)


def test_the_measured_faults_have_every_adversary() -> None:
    """`python tests/helpers/audit_faults.py --write NAME` measures a fault that a test plants."""
    rows = json.loads(audit_faults.RESULTS.read_text())["faults"]
    assert {row["adversary"] for row in rows} == {view.value for view in View}


def test_the_audits_of_sound_runs_are_those_of_the_benchmark() -> None:
    """`python benchmarks/audit.py --write` makes them."""
    rows = json.loads(audit_faults.RESULTS.read_text())["sound"]
    places = list(script("../benchmarks/audit.py").PLACES)
    assert [(row["unit"], row["noise"], row["adversary"]) for row in rows] == places
    audits = sum(row["audits"] for row in rows)
    assert audits >= 200
    assert sum(row["exceeded"] for row in rows) == 0
    assert audits * min(row["least"] or 1.0 for row in rows) > 0.01


def test_a_case_counts_once_and_for_its_own_function() -> None:
    assert trust.tests_of("tests/a.py", "tests/a.py::test_b[1]")
    assert trust.tests_of("tests/a.py::test_b", "tests/a.py::test_b[1]")
    assert not trust.tests_of("tests/a.py::test_b", "tests/a.py::test_bc")


def test_skipped_and_failed_cases_are_not_counted(tmp_path: Path) -> None:
    cases = '<testcase classname="tests.a" name="test_b[1]"/>'
    cases += '<testcase classname="tests.a" name="c"><skipped/></testcase>'
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert trust.passed(tmp_path / "report.xml") == ["tests/a.py::test_b[1]"]
