"""Runs what docs/trust.md counts, and writes the counts to tests/trust.json and the page.

    python tests/helpers/trust.py [PYTEST ARGUMENT ...]    (slow tests, too, unless -m "not slow")
    python tests/helpers/trust.py --only WORD ...          (kinds of cases with this word; all else stays)
    python tests/helpers/trust.py --only "hostile inputs"  (the inputs of each reader; all else stays)

The page itself is made from that file, from the list of planted faults, and from what audits find, by
docs/_site/blocks.py. The run of all planted faults in that file is that of `make mutants ARGS=--write`. A run
in which a test fails writes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
KINDS, RESULTS = ROOT / "tests/trust.toml", ROOT / "tests/trust.json"
FUZZING, INPUTS = "tests/fuzzing", "hostile inputs"


def kinds() -> dict[str, list[str]]:
    """The tests of each kind, as files or as file::function."""
    return {kind["name"]: kind["tests"] for kind in tomllib.loads(KINDS.read_text())["kind"]}


def tests_of(where: str, name: str) -> bool:
    """Whether the file or function ``where`` has the test case ``file::function[parameters]``."""
    return name == where or name.startswith((f"{where}::", f"{where}["))


def passed(report: Path) -> list[str]:
    """The test cases of a JUnit report, as file::function[parameters]. Skipped ones do not count."""
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        if not any(child.tag in ("skipped", "failure", "error") for child in case):
            path = case.attrib["classname"].split(".Test")[0].replace(".", "/")
            found.append(f"{path}.py::{case.attrib['name']}")
    return found


def inputs(folder: Path) -> dict[str, dict[str, int]]:
    """How many inputs each reader accepted and refused, from the counts of all processes."""
    total: Counter[str] = Counter()
    for path in folder.glob("*.json"):
        total.update(json.loads(path.read_text()))
    table: dict[str, dict[str, int]] = {}
    for name, number in sorted(total.items()):
        _, reader, answer = name.split("/")
        table.setdefault(reader, {"accepted": 0, "refused": 0})[answer] = number
    return table


def main(arguments: Sequence[str]) -> int:
    """Runs the tests and writes the results. Returns pytest's exit status."""
    only = arguments[1] if arguments[:1] == ["--only"] and len(arguments) > 1 else ""
    arguments = arguments[2:] if only else arguments
    counted = {kind: tests for kind, tests in kinds().items() if only in kind}
    chosen = {test for tests in counted.values() for test in tests}
    if reads := only in INPUTS:
        chosen.add(FUZZING)
    if not chosen:
        print(f"no kind of cases has the word {only}")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-m", "not exhaustive"]
        command += [*arguments, *sorted(chosen)]
        told = {**os.environ, "FEDPRIV_TALLY": folder}
        done = subprocess.run(command, cwd=ROOT, env=told, check=False)
        if done.returncode:
            return done.returncode
        cases = passed(report)
        results = json.loads(RESULTS.read_text())
        if reads:
            results["inputs"] = inputs(Path(folder))
    before = results["cases"]
    results["cases"] = {
        kind: sum(any(tests_of(where, case) for where in tests) for case in cases)
        if kind in counted
        else before.get(kind, 0)
        for kind, tests in kinds().items()
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return subprocess.run([sys.executable, "docs/_site/blocks.py"], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
