"""Seconds, messages and bytes of secure aggregation.

    python benchmarks/secure_aggregation.py

- round: the gathering of a release from 10 silos, 26,010 parameters, exact noise, plain and masked in turn,
  in one process: all silos and the server one after the other.
- large: one release of 20 parties and 10^6 numbers, without gradients; none leaves, or three leave after they
  shared their keys.
- messages and bytes of one party, counted as they are sent, and on paper at 1,000 parties.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.federated.engine import SumRequest
from fedpriv.node.factory import make_worker
from fedpriv.rng import Key
from fedpriv.secure_aggregation import masks
from fedpriv.secure_aggregation.aggregation import aggregate, in_process, leaving
from fedpriv.secure_aggregation.keys import Identity, Session
from fedpriv.secure_aggregation.messages import CIPHERTEXT, Exchange
from fedpriv.secure_aggregation.party import Member
from fedpriv.secure_aggregation.threshold import smallest_threshold
from fedpriv.simulation.run import secured

SILOS = {
    "unit": "example", "clients": 10, "examples-per-client": 200, "optimizer": "dp-sgd", "rounds": 1000,
    "placement": "distributed", "sampler": "everyone", "sampling-rate": 1.0, "engine": "in-process",
    "secure-aggregation": True,
}  # fmt: skip


def a_round(repetitions: int) -> tuple[list[float], list[float], int]:
    """(seconds of plain gatherings, of masked ones, the number of parameters), in turn."""
    config = Config.parse(SILOS)
    plan, worker = make_plan(config), make_worker(config.table())
    engine, mechanism = secured(config, worker), plan.mechanism
    dimension = worker.task.dimension
    query = mechanism.optimizer.query(mechanism.optimizer.init(torch.zeros(dimension)))
    stds = mechanism.placement.party_stds(query.noise_stds(mechanism.scale))
    request = SumRequest(query, 0, plan.cohorts(Key.fresh()).draw(0), stds)
    spent: tuple[list[float], list[float]] = ([], [])
    for release in range(repetitions + 1):
        for gather, seconds in zip((worker.gather, engine.gather), spent, strict=True):
            begun = time.perf_counter()
            gather(replace(request, release=release))
            seconds.append(time.perf_counter() - begun)
    return spent[0][1:], spent[1][1:], dimension


def large(parties: int, length: int, gone: int) -> tuple[float, Counter[str], Counter[str]]:
    """(seconds, messages of one party by exchange, their bytes)."""
    identities = [Identity.fresh() for _ in range(parties)]
    cohort = tuple(identity.public for identity in identities)
    members = {number: Member(identity, cohort) for number, identity in enumerate(identities, 1)}
    session = Session("benchmark", 0, cohort, smallest_threshold(parties), length)
    values = np.random.default_rng(0).integers(0, 2**64, length, np.uint64)
    counts, sizes = Counter[str](), Counter[str]()

    def sent(exchange: Exchange, replies: Mapping[int, bytes]) -> None:
        counts[exchange.name.lower()] += 1
        sizes[exchange.name.lower()] += len(replies[1])

    leave = {Exchange.MASKED: set(range(parties - gone + 1, parties + 1))}
    begun = time.perf_counter()
    found = aggregate(session, leaving(in_process(members, lambda party: values), leave), sent)
    seconds = time.perf_counter() - begun
    assert (found.total == values * np.uint64(len(found.survivors))).all()
    return seconds, counts, sizes


def stream_seconds(length: int) -> float:
    total = np.zeros(length, np.uint64)
    spent = []
    for _ in range(20):
        begun = time.perf_counter()
        masks.add(total, os.urandom(32))
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent)


def on_paper(parties: int, length: int, stream: float) -> list[str]:
    """What one party sends and computes with ``parties`` others all connected, and on a graph of degree k."""
    lines = []
    for name, degree in (("all pairs", parties - 1), ("a graph of degree 100", 100)):
        # A message has 67 bytes of head and signature; then keys, shares, the message, survivors, reveals.
        sent = 5 * 67 + 64 + (64 + degree * (2 + CIPHERTEXT)) + (32 + 8 * length) + 2 * parties
        sent += (degree + 1) * 35
        streams = parties + parties // 100 * degree
        lines.append(
            f"{parties} parties, {length:,} numbers, {name}: 5 messages, {sent / 1e6:.2f} MB, "
            f"{degree + 1} streams ({(degree + 1) * stream:.2f} s) a party; the server, 1 % gone: "
            f"{streams} streams ({streams * stream:.1f} s)"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=15)
    repetitions = parser.parse_args().repetitions
    print(
        platform.processor() or platform.machine(),
        f"{os.cpu_count()} cores, Python",
        platform.python_version(),
    )
    plain, secure, dimension = a_round(repetitions)
    ratios = sorted(b / a for a, b in zip(plain, secure, strict=True))
    print(
        f"round: {dimension:,} parameters, 10 silos: plain {1e3 * statistics.median(plain):.0f} ms, masked "
        f"{1e3 * statistics.median(secure):.0f} ms, ratio {statistics.median(ratios):.2f} "
        f"({ratios[len(ratios) // 4]:.2f} to {ratios[3 * len(ratios) // 4]:.2f})"
    )
    for gone in (0, 3):
        runs = [large(20, 10**6, gone) for _ in range(5)]
        print(
            f"large: 20 parties, 10^6 numbers, {gone} gone: {statistics.median(run[0] for run in runs):.2f} s"
        )
    for parties, length in ((10, 26_010), (20, 10**6), (64, 26_010)):
        seconds, counts, sizes = large(parties, length, 0)
        print(f"{parties} parties, {length:,} numbers: {seconds:.2f} s; a party sends {sum(counts.values())}")
        print(f"    messages, {sum(sizes.values()):,} bytes: {dict(sizes)}; plain {8 * length:,}")
    for line in on_paper(1000, 26_010, stream_seconds(26_010)) + on_paper(1000, 10**6, stream_seconds(10**6)):
        print(line)


if __name__ == "__main__":
    main()
