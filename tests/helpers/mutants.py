"""Plants the faults of tests/mutants.toml in a copy of the tree, one at a time: a test must notice each.

    python tests/helpers/mutants.py [ID or PATH ...] [--changed [COMMIT]] [--minutes N] [--jobs N] [--list]
    python tests/helpers/mutants.py --write    (runs all, and writes how many are caught for docs/trust.md)

A mutant is a text in a file, the text that replaces it, the default tests that must notice, and the promise
that it breaks. It is caught if a test fails; a test that cannot be collected or takes too long catches
nothing. The same tests pass first on the copy without faults.

Names select mutants by id, by file or by folder. With ``--changed`` only those are run whose file or tests
changed since COMMIT, or whose entry did. COMMIT is by default where this branch left ``main``, or the last
commit's parent; where the clone has no such commit, every mutant counts as changed.

Exit status: 0 if every mutant is caught, 1 if one survives or cannot be planted, 2 if the tests fail without
a fault or the selection is wrong.
"""

from __future__ import annotations

import argparse
import compileall
import datetime
import json
import os
import py_compile
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from subprocess import PIPE

ROOT = Path(__file__).resolve().parents[2]
LIST, RESULTS = "tests/mutants.toml", "tests/trust.json"
WARM = Path(__file__).with_name("warm_pytest.py")

NO_AUDIT = "no: "
CAUGHT, SURVIVED, NOT_APPLICABLE, BROKEN, NOT_RUN = (
    "caught",
    "SURVIVED",
    "NOT APPLICABLE",
    "BROKEN",
    "not run",
)

_PYTEST = ("-x", "-q", "-p", "no:cacheprovider", "--timeout=0")
_ERROR = re.compile(r"^E +(?:\w+\.)*(\w+(?:Error|Exception|Exceeded|Exit))(?=: |$)", re.MULTILINE)
_FAILED = 1  # pytest's exit status if tests ran and some failed
_LIMIT = 600.0  # seconds for the tests of one mutant


class MutantError(ValueError):
    """The list or the selection is wrong."""


@dataclass(frozen=True)
class Mutant:
    """A planted fault.

    Attributes:
        id: its name.
        file: the file, relative to the root.
        before: a text that occurs exactly once in the file.
        after: the text that replaces it.
        tests: test files or node ids of pytest, of which at least one must fail.
        promise: what no longer holds.
        audit: the fault of tests/audits.json of the same kind, if an audit finds this one, or after NO_AUDIT
            why none does; empty where nothing changes that an adversary sees.
    """

    id: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    promise: str
    audit: str = field(default="", compare=False)  # it changes no test

    def planted(self, text: str) -> str:
        """The file's text with the fault. Raises MutantError unless ``before`` occurs exactly once."""
        if (count := text.count(self.before)) != 1:
            raise MutantError(
                f"{self.id}: its text occurs {count} times in {self.file}, not once; update {LIST}"
            )
        return text.replace(self.before, self.after)


@dataclass(frozen=True)
class Outcome:
    """What the tests say of a mutant.

    Attributes:
        mutant: the mutant.
        verdict: CAUGHT, SURVIVED, NOT_APPLICABLE, BROKEN (the tests could not run) or NOT_RUN.
        seconds: the time that its tests took.
        output: the end of pytest's output, unless it is caught.
        how: the error by which it was caught, if no assertion did.
    """

    mutant: Mutant
    verdict: str
    seconds: float = 0.0
    output: str = ""
    how: str = ""


def read(root: Path = ROOT) -> list[Mutant]:
    """The list of a tree. Raises MutantError for an entry with missing or unknown fields, and equal ids."""
    return parsed((root / LIST).read_text())


def parsed(text: str) -> list[Mutant]:
    """The mutants of a list's text."""
    names = {known.name for known in fields(Mutant)}
    found = []
    for table in tomllib.loads(text).get("mutant", []):
        if {"audit", *table} != names:
            wrong = ", ".join(sorted({"audit", *table} ^ names))
            raise MutantError(f"{table.get('id', 'a mutant without id')}: missing or unknown fields: {wrong}")
        found.append(Mutant(**{**table, "tests": tuple(table["tests"])}))
    twice = [name for name, n in Counter(mutant.id for mutant in found).items() if n > 1]
    if twice:
        raise MutantError(f"ids that occur twice: {', '.join(twice)}")
    return found


def selected(mutants: Sequence[Mutant], names: Sequence[str]) -> list[Mutant]:
    """The mutants with one of these ids, files or folders; all without names.

    Raises MutantError for a name that selects nothing.
    """

    def matches(mutant: Mutant, name: str) -> bool:
        path = name.rstrip("/")
        return mutant.id == name or mutant.file == path or mutant.file.startswith(f"{path}/")

    for name in names:
        if not any(matches(mutant, name) for mutant in mutants):
            raise MutantError(f"{name} is neither a mutant's id nor a file or folder with mutants")
    return [mutant for mutant in mutants if not names or any(matches(mutant, name) for name in names)]


def changed(mutants: Sequence[Mutant], since: str | None, root: Path = ROOT) -> list[Mutant]:
    """The mutants whose file, tests or entry differ between the working tree and the commit ``since``.

    None is the default commit (:func:`base`). Without such a commit all mutants are returned.
    """
    commit = since or base(root)
    if commit is None:
        return list(mutants)
    names = _git(root, "diff", "--name-only", "--relative", commit, "--")
    if names is None:
        raise MutantError(f"{commit} is no commit of this repository")
    before = _git(root, "show", f"{commit}:./{LIST}")
    try:
        known = set(parsed(before)) if before is not None else set[Mutant]()
    except MutantError:  # the list had another format then
        known = set()
    files = set(names.splitlines())

    def touched(mutant: Mutant) -> bool:
        used = {mutant.file, *(test.split("::")[0] for test in mutant.tests)}
        return bool(used & files) or mutant not in known

    return [mutant for mutant in mutants if touched(mutant)]


def base(root: Path = ROOT) -> str | None:
    """The commit where this branch left ``main``, or HEAD's parent; None if the clone has neither."""
    head = _git(root, "rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        commit = _git(root, "merge-base", "HEAD", main)
        if commit is not None and commit != head:
            return commit
    return _git(root, "rev-parse", "--verify", "--quiet", "HEAD~1")


def _git(root: Path, *arguments: str) -> str | None:
    """The output of a git command, or None if it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return None
    return done.stdout.strip() if done.returncode == 0 else None


class Copy:
    """A copy of a tree, in which mutants are planted and undone."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        self._pytest: subprocess.Popen[str] | None = None
        self._tried = False  # whether tests have passed in it
        project = tomllib.loads((source / "pyproject.toml").read_text())
        for part in (*project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"], "pyproject.toml"):
            if (source / part).is_dir():
                shutil.copytree(source / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            elif (source / part).exists():
                shutil.copy(source / part, folder / part)
        # Checked by hash: a mutant may have the size, and the second, of the sound file.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / "fedpriv", quiet=1, invalidation_mode=mode)

    def _environment(self) -> dict[str, str]:
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def sound(self, tests: Sequence[str], jobs: int) -> tuple[int, str]:
        """(pytest's exit status, its output) of these tests, in so many processes.

        Raises subprocess.TimeoutExpired.
        """
        command = [sys.executable, "-m", "pytest", *_PYTEST, "-n", str(jobs), "--dist", "loadgroup", *tests]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_LIMIT * len(tests),
        )
        return done.returncode, done.stdout

    def test(self, tests: Sequence[str]) -> tuple[int | None, str]:
        """(pytest's exit status, its output) of these tests, one after the other; the status is None if they
        took too long."""
        if self._pytest is None:
            command = [sys.executable, str(WARM)]
            self._pytest = subprocess.Popen(
                command, cwd=self.folder, env=self._environment(), stdin=PIPE, stdout=PIPE, text=True
            )
        assert self._pytest.stdin is not None
        assert self._pytest.stdout is not None
        asked = [_LIMIT * len(tests), [*_PYTEST, "-n", "0", *tests]]
        print(json.dumps(asked), file=self._pytest.stdin, flush=True)
        status, output = json.loads(self._pytest.stdout.readline())
        return status, output

    def close(self) -> None:
        """End the process that runs the tests; without one nothing happens."""
        if self._pytest is not None:
            self._pytest.communicate()
            self._pytest = None

    @contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        """The copy with this fault, while the context is open. Raises MutantError if it does not apply."""
        path = self.folder / mutant.file
        sound = path.read_text()
        path.write_text(mutant.planted(sound))
        try:
            yield
        finally:
            path.write_text(sound)

    def judge(self, mutant: Mutant) -> Outcome:
        """Plants the mutant, runs its tests, and undoes it."""
        begun = time.monotonic()
        try:
            if not self._tried:  # or what breaks every run would catch every mutant
                status, output = self.test(mutant.tests)
                if status != 0:
                    return Outcome(mutant, BROKEN, output=f"its tests fail without it:\n{output[-2000:]}")
                self._tried = True
            with self.with_fault(mutant):
                status, output = self.test(mutant.tests)
        except MutantError as error:
            return Outcome(mutant, NOT_APPLICABLE, output=str(error))
        except FileNotFoundError:
            return Outcome(mutant, NOT_APPLICABLE, output=f"there is no {mutant.file}")
        seconds = time.monotonic() - begun
        if status is None:
            return Outcome(mutant, BROKEN, seconds, "the tests did not end in time")
        if status == _FAILED:
            return Outcome(mutant, CAUGHT, seconds, how=_how(output))
        return Outcome(mutant, BROKEN if status else SURVIVED, seconds, output[-2000:])


def _how(output: str) -> str:
    """The error by which a mutant was caught, if no assertion did; it may be a fault that no code would have.

    >>> _how("E   AttributeError: no attribute 'x'\\n"), _how("E   assert 1 == 0\\n")
    ('AttributeError', '')
    """
    names = _ERROR.findall(output)
    return str(names[-1]) if names and names[-1] != "AssertionError" else ""


def judge_all(
    mutants: Sequence[Mutant], root: Path = ROOT, jobs: int = 2, minutes: float | None = None
) -> Iterator[Outcome]:
    """The outcomes of all mutants, in their order, as they become known.

    Raises MutantError if the tests fail without a fault. After ``minutes`` no further mutant is begun.
    """
    end = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        all_copies = [Copy(root, Path(folder) / str(job)) for job in range(min(jobs, len(mutants)) or 1)]
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        status, output = all_copies[0].sound(tests, len(all_copies))
        copies: queue.Queue[Copy] = queue.Queue()
        for copy in all_copies:
            copies.put(copy)
        if status:
            raise MutantError(f"the tests do not pass without a fault:\n{output[-4000:]}")

        def one(mutant: Mutant) -> Outcome:
            if time.monotonic() > end:
                return Outcome(mutant, NOT_RUN)
            copy = copies.get()
            try:
                return copy.judge(mutant)
            finally:
                copies.put(copy)

        try:
            with ThreadPoolExecutor(jobs) as pool:
                yield from pool.map(one, mutants)
        finally:
            for copy in all_copies:
                copy.close()


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command; returns its exit status."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("names", nargs="*", metavar="ID or PATH", help="which mutants; all by default")
    parser.add_argument("--changed", nargs="?", const="", metavar="COMMIT", help="only those that changed")
    parser.add_argument("--minutes", type=float, help="begin no further mutant after so many minutes")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: 2)")
    parser.add_argument("--write", action="store_true", help=f"write to {RESULTS} how many of all are caught")
    parser.add_argument("--list", action="store_true", help="print the mutants and their promises")
    given = parser.parse_args(arguments)
    if given.write and (given.names or given.changed is not None or given.minutes is not None):
        parser.error("--write is for a run of all mutants")
    try:
        mutants = selected(read(root), given.names)
        if given.changed is not None:
            mutants = changed(mutants, given.changed or None, root)
        if given.list:
            print("\n".join(f"{mutant.id}: {mutant.promise}" for mutant in mutants))
            return 0
        if given.minutes is not None:  # which ones are run first differs from commit to commit
            random.Random(_git(root, "rev-parse", "HEAD")).shuffle(mutants)
        begun = time.monotonic()
        outcomes = judge_all(mutants, root, max(1, given.jobs), given.minutes) if mutants else ()
        counts = report(outcomes)
        if given.write:
            write(counts, round((time.monotonic() - begun) / 60), root)
        return 1 if any(counts[verdict] for verdict in (SURVIVED, NOT_APPLICABLE, BROKEN)) else 0
    except MutantError as error:
        print(error)
        return 2


def report(outcomes: Iterator[Outcome] | tuple[()]) -> Counter[str]:
    """Prints the outcomes as they come, and their counts, which it returns."""
    begun, counts = time.monotonic(), Counter[str]()
    for outcome in outcomes:
        counts[outcome.verdict] += 1
        if outcome.verdict != NOT_RUN:
            how = f" (by {outcome.how})" if outcome.how else ""
            print(f"{outcome.verdict:<10} {outcome.seconds:5.1f} s  {outcome.mutant.id}{how}", flush=True)
        if outcome.verdict not in (CAUGHT, NOT_RUN):
            print(f"    {outcome.mutant.file}: {outcome.mutant.promise}\n{outcome.output}", flush=True)
    total = ", ".join(f"{n} {verdict}" for verdict, n in counts.items()) or "no mutant to run"
    print(f"{total} ({(time.monotonic() - begun) / 60:.1f} minutes)")
    return counts


def write(counts: Counter[str], minutes: int, root: Path) -> None:
    """Puts the counts of a run of all mutants into RESULTS, from which docs/trust.md is made."""
    path, today = root / RESULTS, datetime.datetime.now(datetime.UTC).date().isoformat()
    results = json.loads(path.read_text()) if path.exists() else {}
    run = {"date": today, "listed": counts.total(), "caught": counts[CAUGHT], "minutes": minutes}
    path.write_text(json.dumps({**results, "mutants": run}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
