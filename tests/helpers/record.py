"""Records the results of command lines, and compares the results of changed code with the recording.

    python tests/helpers/record.py --out FILE.json
    python tests/helpers/record.py --check FILE.json [--only TEXT] [--ignore FIELD]

Every case of recorded_cases.py is run in this process through ``fedpriv.cli.main``, with a seed, on the CPU.
The package is the one that PYTHONPATH names, else the one of this checkout. Recorded are exit codes, digests
of parameters, of the state from which a run is resumed, of ledgers, metrics and reports, and a few numbers by
which people see what a difference means. Bits depend on the machine and on the version of torch: a recording
is for the machine that made it.

Left out, because they may change without a change of behaviour: sentences (texts with a space), the
package's version, versions of libraries, pictures, report.md, the ledger's chain, which covers sentences, and
the digest of the configuration in state.safetensors. While the package's version is that of the recording,
the raw bytes of model, ledger and metrics must be equal, too: the fields "... bytes". Epsilons in reports of
silos that train by themselves, and in comparisons, are compared to ten figures: 0.1.0 itself gives other last
bits in another process.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FIXTURES = HERE.parent / "fixtures"

Fields = dict[str, Any]

_ABOUT = ("version", "fedpriv", "versions", "chain", "out", "overwrite", "before round 1")


def prepare() -> Callable[[], None]:
    """The command, of the tree that PYTHONPATH names or of this checkout, without pictures."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if not any((Path(path) / "fedpriv").is_dir() for path in paths):
        sys.path.insert(0, str(ROOT))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *paths])  # Ray's processes read it
    import torch
    from matplotlib.figure import Figure

    torch.set_num_threads(1)
    mock.patch.object(Figure, "savefig", _draw_nothing).start()  # never stopped
    main: Callable[[], None] = importlib.import_module("fedpriv.cli").main
    return main


def _draw_nothing(figure: object, file: Any, **options: Any) -> None:
    """Replaces plotting, which takes longer than the runs."""
    with contextlib.suppress(AttributeError):
        file.write(b"picture")


def called(main: Callable[[], None], arguments: tuple[str, ...]) -> tuple[int, str]:
    """The exit code and the standard output of one command; its standard error is left out."""
    out, err, old = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["fedpriv", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            main()
    except SystemExit as end:
        return (end.code if isinstance(end.code, int) else int(end.code is not None)), out.getvalue()
    finally:
        sys.argv = old
    return 0, out.getvalue()


@contextlib.contextmanager
def interrupting(after: int) -> Iterator[None]:
    """Send SIGINT after so many records of a ledger are on disk, its header among them; never after 0."""
    sync, done = os.fsync, 0

    def counting(fd: FileDescriptorLike) -> None:
        nonlocal done
        sync(fd)
        if "ledger.jsonl" in os.path.basename(os.readlink(f"/proc/self/fd/{fd}")):
            done += 1
            if done == after:
                os.kill(os.getpid(), signal.SIGINT)

    os.fsync = counting if after else sync
    try:
        yield
    finally:
        os.fsync = sync


def recorded(case: Any, main: Callable[[], None]) -> Fields:
    """The outputs and files of the case's commands, run in a separate folder."""
    old = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return _recorded(case, main)
        except Exception as error:  # an error of the code, which is a difference and not the end
            return {"exit": f"{type(error).__name__}: {error}"}
        finally:
            os.chdir(old)


def _recorded(case: Any, main: Callable[[], None]) -> Fields:
    for name, text in case.files.items():
        Path(name).write_text(text)
    if case.fixture:
        shutil.copytree(FIXTURES / case.fixture, "run")
    fields: Fields = {}
    codes, last = [], ""
    for number, arguments in enumerate(case.commands):
        with interrupting(0 if number else case.interrupt):
            code, last = called(main, arguments)
        codes.append(code)
    fields["exit"] = codes
    if codes[-1] == 2:
        return fields
    if case.commands[-1][0] not in ("simulate", "train", "resume"):
        answer = without_prose(json.loads(last)) if last.strip() else None
        fields["answer"] = rounded(answer) if case.commands[-1][0] == "compare" else answer
    for name in case.runs:
        if Path(name).is_dir():
            label = f"{name}/" if len(case.runs) > 1 else ""
            fields |= {label + key: value for key, value in of_run(Path(name), case.whole).items()}
    return fields


def of_run(folder: Path, whole: bool) -> Fields:
    """The content of a run's folder."""
    fields: Fields = {"files": sorted(path.name for path in folder.iterdir())}
    config = tomllib.loads((folder / "config.toml").read_text())
    fields["config"] = {key: value for key, value in config.items() if key not in _ABOUT}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    fields["metrics"] = digest(without_prose(lines))
    fields["last metrics"] = without_prose(lines[-1]) if lines else None
    fields["metrics bytes"] = _sha((folder / "metrics.jsonl").read_bytes())
    ledger = (folder / "ledger.jsonl").read_bytes()
    lines = [json.loads(line) for line in ledger.splitlines()]
    fields["ledger"] = digest(without_prose(lines))
    fields["ledger lines"] = len(lines)
    fields["first noise multiplier"] = lines[1]["event"]["noise_multiplier"] if lines[1:] else None
    fields["ledger bytes"] = _sha(ledger)
    fields["model"], about = of_tensors(folder / "model.safetensors")
    fields["model round"] = about.get("round")
    fields["model bytes"] = _sha((folder / "model.safetensors").read_bytes())
    if (folder / "state.safetensors").is_file():
        fields["state"], about = of_tensors(folder / "state.safetensors")
        about_state = json.loads(about["fedpriv"])
        fields["state at"] = {key: about_state[key] for key in ("step", "resumed", "releases", "model")}
    report = without_prose(json.loads((folder / "report.json").read_text()))
    if config["level"] == "client":
        report["privacy"]["views"] = rounded(report["privacy"]["views"])
    fields["report"] = report if whole else digest(report)
    fields["stopped"] = report["result"]["stopped"]
    return fields


def of_tensors(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The digest of each tensor in a safetensors file, and the file's own words."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    about = header.pop("__metadata__", {})
    found = {}
    for name, tensor in sorted(header.items()):
        start, end = tensor["data_offsets"]
        kind = f"{tensor['dtype']} {tensor['shape']} ".encode()
        found[name] = _sha(kind + body[start:end])
    return found, about


def without_prose(value: Any) -> Any:
    """The value without versions, paths and chains, and with no sentence in it."""
    if isinstance(value, dict):
        return {key: without_prose(own) for key, own in value.items() if key not in _ABOUT}
    if isinstance(value, list):
        return [without_prose(own) for own in value]
    return "..." if isinstance(value, str) and " " in value else value


def rounded(value: Any) -> Any:
    """The value with floats of ten figures: 0.1.0 adds the releases of silos up in the order of a set."""
    if isinstance(value, dict):
        return {key: rounded(own) for key, own in value.items()}
    if isinstance(value, list):
        return [rounded(own) for own in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


def digest(value: Any) -> str:
    """The digest of a value as JSON, in which floats are exact."""
    return _sha(json.dumps(value, sort_keys=True).encode())


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def differences(old: Any, new: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Each field that differs, and how."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            place = f"{at}.{key}" if at else key
            if key not in new:
                yield place, f"is gone, was {_short(old[key])}"
            elif key not in old:
                yield place, f"is new, {_short(new[key])}"
            else:
                yield from differences(old[key], new[key], place)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{at}[{number}]")
    elif json.dumps(old) != json.dumps(new):
        yield at, f"was {_short(old)}, is {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def environment(main: Callable[[], None]) -> dict[str, str]:
    """The hardware and library versions that results depend on."""
    import numpy
    import torch

    version = called(main, ("--version",))[1].strip()
    found = {"fedpriv": version, "torch": torch.__version__, "numpy": numpy.__version__}
    return {**found, "python": platform.python_version(), "machine": platform.machine()}


def skipped(case: Any) -> bool:
    """Whether the case's data is missing."""
    return bool(case.needs) and not (Path(os.environ.get("FEDPRIV_DATA", "")) / case.needs).is_dir()


def main() -> int:
    """Record or check."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="record to this file")
    what.add_argument("--check", type=Path, help="compare with this file")
    parser.add_argument("--only", default="", help="only the cases whose name has this text")
    parser.add_argument(
        "--ignore", action="append", default=[], help="field, or its beginning, that may differ; repeatable"
    )
    parser.add_argument("--times", action="store_true", help="tell how long each case takes")
    asked = parser.parse_args()
    old: dict[str, Any] = json.loads(asked.check.read_text()) if asked.check else {}
    if asked.out:
        asked.out = asked.out.resolve()
    command = prepare()

    # By name, since a script imports the file beside it without its package, where mypy does not look.
    cases: Callable[[], list[Any]] = importlib.import_module("recorded_cases").cases

    began, about = time.monotonic(), environment(command)
    print(f"the package in {Path(sys.modules['fedpriv'].__file__ or '').parent}", flush=True)
    chosen = [case for case in cases() if asked.only in case.name]
    left_out = [case.name for case in chosen if skipped(case)]
    found: dict[str, Fields] = {}
    for case in chosen:
        if case.name not in left_out:
            start = time.monotonic()
            found[case.name] = recorded(case, command)
            if asked.times:
                took = f"{time.monotonic() - start:7.2f} s"
                print(f"{took}  {found[case.name]['exit']}  {case.name}", flush=True)
    for name in left_out:
        print(f"left out, its data is not under FEDPRIV_DATA: {name}")
    took = f"{len(found)} cases in {time.monotonic() - began:.0f} s"
    if asked.out:
        asked.out.write_text(json.dumps({"about": about, "cases": found}, indent=1) + "\n")
        print(f"recorded {took}: {asked.out}")
        return 0
    recorded_before = {n: f for n, f in old["cases"].items() if asked.only in n and n not in left_out}
    return compared(old["about"], about, recorded_before, found, asked.ignore, took)


def compared(
    old_about: dict[str, str],
    about: dict[str, str],
    old: dict[str, Fields],
    new: dict[str, Fields],
    ignore: list[str],
    took: str,
) -> int:
    """List the differences; 1 if there are any."""
    for key, (one, other) in {key: (old_about[key], about[key]) for key in old_about}.items():
        if one != other:
            print(f"note: {key} was {one}, is {other}")
    same_version = old_about["fedpriv"] == about["fedpriv"]
    if not same_version:
        print("note: raw bytes, which hold the version, are not compared")
    wrong = set()
    for name in dict.fromkeys((*old, *new)):
        if name not in new or name not in old:
            wrong.add(name)
            print(f"{name}: {'is not run any more' if name not in new else 'was not recorded'}")
            continue
        for field, how in differences(old[name], new[name]):
            raw = field.endswith(" bytes") and not same_version
            if not raw and not any(field.startswith(own) for own in ignore):
                wrong.add(name)
                print(f"{name}: {field} {how}")
    print(f"{len(wrong)} of {took} differ" if wrong else f"all equal: {took}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
