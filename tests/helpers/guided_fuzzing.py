"""Tries the properties of tests/fuzzing with inputs that a coverage-guided fuzzer (atheris) looks for.

    python tests/helpers/guided_fuzzing.py [WORD ...] [--seconds N] [--jobs N] [--list]
    python tests/helpers/guided_fuzzing.py --repeat FILE    (tries one input again; needs no atheris)

A target is a test of tests/fuzzing with the parameter ``examples``; there is no other list of them. A WORD
selects the targets whose names contain it; without one, all are tried. Each has a process of its own for N
seconds. Where inputs are bytes of any content, the fuzzer changes those of valid files; elsewhere it changes
the bytes from which hypothesis makes its choices.

Inputs that reach new code are kept in .fuzz/TARGET/corpus, where the next run begins. An input that fails is
kept in .fuzz/TARGET: the property does not hold, the process ends, or the input takes a minute or a gigabyte.

Exit status: 0 if no input fails, 1 if one does or a target cannot be tried, 2 if nothing can be tried at all.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import os
import random
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS, KEPT = ROOT / "tests/fuzzing", ROOT / ".fuzz"
MISSING = (
    "The fuzzer atheris is not installed. `make fuzz` installs it on Linux (x86_64) with Python 3.11 to "
    "3.13; elsewhere `pip install atheris` compiles it, which needs clang."
)

# Decoders that fedpriv hands bytes to: the fuzzer also looks for inputs that reach new code of theirs.
_DECODERS = ("csv", "gzip", "json.decoder", "numpy.lib._format_impl", "tarfile", "tomllib._parser", "zipfile")
_SLOWEST = 60  # seconds for one input, on a busy machine
_MEMORY = 1 << 30  # bytes beyond what the process has when it begins
_START = 600  # seconds until the first input: the imports, and a run whose files are changed
_SIZES = (64, 256, 1024, 4096)  # bytes of choices with which a property begins


@dataclass(frozen=True)
class Target:
    """A property.

    Attributes:
        name: what it is called here.
        test: the test's file and id.
        folder: where its inputs are kept.
    """

    name: str
    test: str
    folder: Path


class Listing:
    """A plugin of pytest that notes the targets among the collected tests."""

    def __init__(self, kept: Path) -> None:
        self.targets: list[Target] = []
        self._kept = kept

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            case = getattr(item, "callspec", None)
            if case is None or "examples" not in case.params:
                continue
            what = item.originalname.removeprefix("test_").replace("_", " ")  # type: ignore[attr-defined]
            which = case.id.removesuffix("few").removesuffix("-")
            name = f"{item.path.stem.removeprefix('test_')}: {what}" + (f" ({which})" if which else "")
            folder = self._kept / re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
            self.targets.append(Target(name, f"{item.path}::{item.nodeid.partition('::')[2]}", folder))


class Driver:
    """A plugin of pytest that tries the property of the test in its own way."""

    def __init__(self, drive: Callable[[Any], None]) -> None:
        self._drive = drive

    def pytest_collection_finish(self) -> None:
        from helpers import fuzzing  # not before pytest has set the path, and modules are instrumented

        fuzzing.guide = self._drive


def _pytest(arguments: Sequence[str], plugin: object) -> int:
    plain = (
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout=0",
        "-n",
        "0",
        f"--rootdir={ROOT}",
        f"--config-file={ROOT}/pyproject.toml",
    )
    return int(pytest.main([*plain, *arguments], plugins=[plugin]))


def targets(tests: Path = TESTS, kept: Path = KEPT) -> list[Target]:
    """All targets, by pytest's own collection of the tests."""
    listing = Listing(kept)
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        status = _pytest(["--collect-only", str(tests)], listing)
    if status or not listing.targets:
        raise SystemExit(f"The tests of {tests} cannot be collected; `make test ARGS={tests}` says why.")
    return listing.targets


class Seeded:
    """Choices of a mutation that a number decides; see ``helpers.fuzzing.Choices``."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def among(self, values: Sequence[Any]) -> Any:
        return self._random.choice(values)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions of a module and of its classes."""
    for owner in (module, *(each for each in vars(module).values() if inspect.isclass(each))):
        for each in vars(owner).values():
            if isinstance(each, FunctionType) and each.__module__ == module.__name__:
                yield each


def _limit_memory() -> int:
    """Makes large allocations fail, also of memory that nobody touches. Returns the bytes in use now."""
    try:
        has, used = (
            int(pages) * os.sysconf("SC_PAGE_SIZE")
            for pages in Path("/proc/self/statm").read_text().split()[:2]
        )
    except FileNotFoundError:  # Linux alone has it
        return 0
    resource.setrlimit(resource.RLIMIT_AS, (has + 2 * _MEMORY, has + 2 * _MEMORY))
    return used


def _drive(property_: Any, target: Target, seconds: int, scratch: Path) -> None:
    """Tries one property, a ``helpers.fuzzing.Target``; libFuzzer ends the process itself."""
    import atheris

    from helpers.fuzzing import change

    corpus, seeds = target.folder / "corpus", scratch / "seeds"
    corpus.mkdir(parents=True, exist_ok=True)
    seeds.mkdir()
    choices = random.Random(0)
    for number, seed in enumerate(property_.seeds or [choices.randbytes(size) for size in _SIZES]):
        (seeds / str(number)).write_bytes(seed)

    def read(data: bytes) -> None:
        property_.read(data)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        if seed % 2:
            return bytes(atheris.Mutate(data, most))
        changed = bytearray(data)
        change(Seeded(seed), changed)
        return bytes(changed[:most])

    options = {
        "artifact_prefix": f"{target.folder}/",
        "max_total_time": seconds,
        "timeout": _SLOWEST,
        "report_slow_units": _SLOWEST,
        "rss_limit_mb": (_limit_memory() + _MEMORY) >> 20,
        "max_len": max(4096, *(2 * len(seed) for seed in property_.seeds), 0),
        "len_control": 0,
        "print_final_stats": 1,
    }
    arguments = [
        sys.argv[0],
        *(f"-{name}={value}" for name, value in options.items()),
        str(corpus),
        str(seeds),
    ]
    atheris.Setup(arguments, read, **({"custom_mutator": mutate} if property_.seeds else {}))
    atheris.Fuzz()


def _fuzz(target: Target, seconds: int, scratch: Path) -> int:
    """Tries one target in this process, in which nothing has imported fedpriv."""
    import atheris

    for name in _DECODERS:
        with contextlib.suppress(ImportError):
            for function in _functions(importlib.import_module(name)):
                atheris.instrument_func(function)
    with atheris.instrument_imports(include=["fedpriv"]):
        drive = Driver(lambda property_: _drive(property_, target, seconds, scratch))
        return _pytest(["-s", f"--basetemp={scratch / 'pytest'}", target.test], drive)


def _failing(folder: Path) -> set[Path]:
    """The inputs that failed, as libFuzzer names them."""
    return {path for kind in ("crash", "timeout", "oom") for path in folder.glob(f"{kind}-*")}


def _short(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _reason(log: str, path: Path) -> str:
    """Why an input failed, in a few words."""
    if path.name.startswith("timeout"):
        return f"it took longer than {_SLOWEST} seconds"
    if path.name.startswith("oom"):
        return f"it took more than {_MEMORY >> 20} MiB"
    _, _, after = log.partition("=== Uncaught Python exception: ===")
    lines = [line.strip() for line in after.splitlines() if line.strip()]
    return lines[0][:300] if lines else "it ended the process"


def try_target(target: Target, seconds: int) -> tuple[bool, str]:
    """Tries one target in a process of its own. Returns whether all inputs passed, and a sentence."""
    target.folder.mkdir(parents=True, exist_ok=True)
    before = _failing(target.folder)
    with tempfile.TemporaryDirectory() as scratch, open(target.folder / "log", "w+", errors="replace") as log:
        command = [
            sys.executable,
            "-P",
            __file__,
            f"--seconds={seconds}",
            "--in-this-process",
            target.test,
            str(target.folder),
        ]
        told = {**os.environ, "TMPDIR": scratch}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                cwd=ROOT,
                env=told,
                stdout=log,
                stderr=log,
                timeout=_START + seconds + 2 * _SLOWEST,
                check=False,
            )
        log.seek(0)
        said = log.read()
    if failed := sorted(_failing(target.folder) - before):
        again = shlex.quote(f"ARGS=--repeat {_short(failed[0])}")
        why = _reason(said, failed[0])
        return False, f"{target.name}: an input fails: {why}. Repeat it with `make fuzz {again}`."
    if done := re.search(r"number_of_executed_units: (\d+)", said):
        return True, f"{target.name}: {int(done[1]):,} inputs, none fails."
    return False, f"{target.name}: it ended early; {_short(target.folder)}/log says why."


def try_all(chosen: Sequence[Target], seconds: int, jobs: int) -> int:
    """Tries these targets, so many at a time. Returns the exit status."""
    rounds = -(-len(chosen) // jobs)
    minutes = max(rounds * (seconds + 10) // 60, 1)  # ten seconds to begin
    print(f"{len(chosen)} targets, {jobs} at a time: {minutes} minutes or more.", flush=True)
    passed = []
    with ThreadPoolExecutor(jobs) as pool:
        for good, sentence in pool.map(lambda target: try_target(target, seconds), chosen):
            print(sentence, flush=True)
            passed.append(good)
    print(f"{sum(passed)} of {len(passed)} targets passed.")
    return 0 if all(passed) else 1


def repeat(path: Path, found: Sequence[Target]) -> int:
    """Tries one kept input again, without atheris. Returns the exit status."""
    matching = [target for target in found if path.resolve().is_relative_to(target.folder.resolve())]
    if not matching or not path.is_file():
        print(f"{path} is no file in a target's folder, .fuzz/TARGET; a run names the inputs that fail.")
        return 2
    data = path.read_bytes()
    status = _pytest(["-s", matching[0].test], Driver(lambda property_: property_.read(data)))
    print(f"{matching[0].name}: the input {'fails' if status else 'passes'}.")
    return 1 if status else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="targets whose names contain it")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time (one a core)"
    )
    parser.add_argument("--list", action="store_true", help="name the targets and try nothing")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="try one kept input again")
    parser.add_argument(
        "--tests", type=Path, default=TESTS, help="whose properties are tried (tests/fuzzing)"
    )
    parser.add_argument("--kept", type=Path, default=KEPT, help="where inputs are kept (.fuzz)")
    parser.add_argument("--in-this-process", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Does what the arguments say. Returns the exit status."""
    options = _options(arguments)
    if not (options.list or options.repeat) and importlib.util.find_spec("atheris") is None:
        print(MISSING)
        return 2
    if options.in_this_process:
        test, folder = options.in_this_process
        return _fuzz(Target(test, test, Path(folder)), options.seconds, Path(tempfile.mkdtemp()))
    found = targets(options.tests, options.kept)
    if options.repeat:
        return repeat(options.repeat, found)
    words = [word.lower() for word in options.words]
    chosen = [target for target in found if not words or any(word in target.name.lower() for word in words)]
    if not chosen:
        print(f"No target's name contains {' or '.join(options.words)}; --list names the targets.")
        return 2
    if options.list:
        print("\n".join(target.name for target in chosen))
        return 0
    return try_all(chosen, options.seconds, options.jobs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
