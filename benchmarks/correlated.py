"""Noise on sums of releases: correlated against independent noise, at one epsilon and one expected cohort.

    python benchmarks/correlated.py             # some seconds

For each number of bands b: the noise multiplier z that spends the budget by PLD, and the root mean square
over the rounds of the noise std of the sum of all releases so far, in multiples of the clip norm.
The ratio is to b = 1. The last row of each setting is q b = 1: a fixed order, without secret sampling.
"""

from __future__ import annotations

from fedpriv.accounting import Budget
from fedpriv.config.bands import sum_noise
from fedpriv.config.schema import Config
from fedpriv.mechanism.correlated import prefix_noise

# (q, T, epsilon), with delta 1e-6
SETTINGS = ((0.01, 150, 3.0), (0.001, 1500, 2.0))


def main() -> None:
    """See the module's docstring."""
    for rate, rounds, epsilon in SETTINGS:
        given = {"sampler": "cyclic-poisson", "sampling-rate": rate, "rounds": rounds, "epsilon": epsilon}
        config = Config.parse({**given, "optimizer": "dp-sgd", "clients": 100_000})
        config = config.resolved()
        budget = Budget(epsilon, config.delta)
        print(f"q {rate:g}, T {rounds:,}, epsilon {epsilon:g}, delta {config.delta:g}, N {config.units:,}")
        print("| b | z | noise on sums | ratio |", "|---|---|---|---|", sep="\n")
        most = round(1 / rate)
        one = sum_noise(config, 1, budget)
        for bands in [*(2**k for k in range(10) if 2**k < most), most]:
            noise = sum_noise(config, bands, budget)
            z = noise / prefix_noise(bands, rounds)
            print(f"| {bands} | {z:.3f} | {noise:.2f} | {noise / one:.3f} |")


if __name__ == "__main__":
    main()
