"""Shared by small benchmarks: command-line options, and alternate timing of several sides."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import torch


def options(about: str | None, repeats: int) -> argparse.Namespace:
    """Parse ``--threads`` (for torch) and ``--repeats``; print the machine."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=raw)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=repeats)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"{platform.machine()}, {given.threads} threads, torch {torch.__version__}")
    return given


def medians(sides: Mapping[str, Callable[[], object]], repeats: int, first: int = 1) -> dict[str, float]:
    """Median milliseconds of wall time of each side; the first turns are not counted."""
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats + first):
        for side, run in sides.items():
            started = time.perf_counter()
            run()
            taken[side].append(time.perf_counter() - started)
    return {side: 1000 * statistics.median(seconds[first:]) for side, seconds in taken.items()}
