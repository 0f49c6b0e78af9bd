"""Du et al. 2021, Table 1: Dynamic DP-SGD on MNIST, centralised.

    python simulations/dynamic_dp_sgd/table_1.py --run        # the table's runs, 5 seeds each
    python simulations/dynamic_dp_sgd/table_1.py --search     # the settings that were tried, one seed each
    python simulations/dynamic_dp_sgd/table_1.py --official   # the official repository's settings, 5 seeds
    python simulations/dynamic_dp_sgd/table_1.py --adaclip    # AdaClip: its step sizes, then 5 seeds
    python simulations/dynamic_dp_sgd/table_1.py              # the table from table_1.jsonl

Needs MNIST under $FEDPRIV_DATA (`fedpriv data fetch mnist`). Finished runs are appended to ``table_1.jsonl``
and skipped the next time. Runs are seeded to be repeatable; such runs are not private.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from batches import FRESH, SEEDS, Cell, batch, markdown, read, scores, spread

RESULTS = Path(__file__).with_name("table_1.jsonl")
PAPER = {
    "vanilla": (91.18, 93.80, 95.50),
    "growing-mu": (91.67, 94.49, 96.06),
    "sensitivity-decay": (93.95, 95.17, 96.17),
    "dynamic": (94.35, 95.21, 96.34),
    "noise decay, zCDP": (10.28, 10.12, 65.33),
    "noise decay, tCDP": (26.93, 83.28, 92.60),
}


def cell(
    part: str,
    method: str,
    epsilon: float,
    rounds: int,
    learning_rate: float,
    clip_norm: float,
    rho_c: float,
    rho_mu: float,
    accounting: str = "gdp-clt",
    rate: float = 250 / 60_000,
) -> Cell:
    """A run in the paper's setting: p = 250 / 60000, delta = 1 / (10 N), noise by GDP-CLT."""
    config = {
        "dataset": "mnist",
        "model": "cnn",
        "input-mean": 0.1307,  # the published constants of MNIST
        "input-std": 0.3081,
        "sampling-rate": rate,
        "rounds": rounds,
        "optimizer": "dynamic-dp-sgd",
        "learning-rate": learning_rate,
        "clip-norm": clip_norm,
        "rho-c": rho_c if method in ("sensitivity-decay", "dynamic") else 1.0,
        "rho-mu": rho_mu if method in ("growing-mu", "dynamic") else 1.0,
        "epsilon": epsilon,
        "accounting": accounting,
        "evaluate-every": rounds,
    }
    return Cell(part, method, config)


# (rounds, learning rate, C_0, rho_c, rho_mu) by epsilon; T, the step size and rho are ours (see README).
SETTINGS = {
    0.4: (700, 3.0, 0.5, 5.0, 1.25),
    0.6: (1000, 3.0, 0.5, 5.0, 1.25),
    1.2: (1500, 3.0, 0.5, 5.0, 1.25),
}
EPOCH = 60_000 // 250
ADACLIP_RATES = (0.3, 1.0, 3.0, 10.0)  # step sizes that were tried at the smallest epsilon
DECAYED = {"noise decay, zCDP": ("zcdp", "time-based"), "noise decay, tCDP": ("tcdp", "exponential")}
# The official repository at epsilon 0.4: 20 epochs of 60,000 / 256 steps, schedules constant in an epoch.
OFFICIAL_EPOCH = 60_000 // 256
OFFICIAL = (20 * OFFICIAL_EPOCH, 0.15, 1.5, 1 / 0.3, 1 / 0.8)
# Suits vanilla better; not run at the other budgets.
GENTLE = (0.4, 500, 2.0, 0.5, 3.0, 1.25)
# What was tried, one seed each: (epsilon, rounds, learning rate, C_0, rho_c, rho_mu).
TRIED = (
    (0.4, 300, 2.0, 0.5, 3.0, 1.25),
    (0.4, 500, 2.0, 0.5, 3.0, 1.25),
    (0.4, 500, 4.0, 0.5, 3.0, 1.25),
    (0.4, 1000, 2.0, 0.5, 3.0, 1.25),
    (0.4, 1000, 1.0, 1.5, 3.0, 1.25),
    (0.4, 1000, 4.0, 0.25, 3.0, 1.25),
    (0.6, 600, 2.0, 0.5, 3.0, 1.25),
    (1.2, 1000, 2.0, 0.5, 3.0, 1.25),
    (1.2, 1000, 4.0, 0.5, 3.0, 1.25),
    (1.2, 1000, 2.0, 1.0, 5.0, 1.25),
    (1.2, 1000, 4.0, 1.0, 10.0, 1.25),
    (1.2, 1500, 8.0, 0.2, 4.0, 1.25),
    (1.2, 1500, 4.0, 0.4, 5.0, 1.25),
    (1.2, 2000, 2.0, 0.5, 3.0, 1.25),
    (1.2, 2000, 3.0, 0.5, 5.0, 1.25),
    (1.2, 2000, 3.0, 0.5, 5.0, 1.5),
    (1.2, 2000, 3.0, 0.5, 8.0, 1.25),
    (1.2, 2500, 3.0, 0.5, 5.0, 1.25),
    (1.2, 3000, 2.5, 0.5, 5.0, 1.25),
    (1.2, 2000, 4.0, 0.4, 5.0, 1.25),
    (1.2, 2000, 8.0, 0.2, 4.0, 1.25),
    (1.2, 2000, 8.0, 0.2, 3.0, 2.0),
)


def decayed(method: str, epsilon: float) -> Cell:
    """Noise that decays by epoch under zCDP (Yu et al. 2019) or tCDP (Zhang et al. 2021), with the other
    methods' steps. Forms and k are the defaults; the paper states none.
    """
    accounting, form = DECAYED[method]
    made = cell("table", method, epsilon, *SETTINGS[epsilon], accounting=accounting)
    made.config.update({"noise-schedule": form, "noise-epoch": EPOCH})
    return made


def official(method: str) -> Cell:
    """A run with the official repository's settings at epsilon 0.4; its delta is 1 / N, here just below."""
    made = cell("official", method, 0.4, *OFFICIAL, rate=256 / 60_000)
    made.config.update({"delta": 1.66e-5, "noise-epoch": OFFICIAL_EPOCH})
    return made


def adaclip(epsilon: float, learning_rate: float, part: str = "rest") -> Cell:
    """AdaClip (Pichapati et al. 2019) for as many steps as the other methods, which ``part`` of the test
    images scores. Its clip norm is 1, as in its paper; its other settings are the defaults."""
    config = dict(cell("", "vanilla", epsilon, SETTINGS[epsilon][0], learning_rate, 1.0, 1.0, 1.0).config)
    for key in ("rho-c", "rho-mu"):
        del config[key]
    config |= {"optimizer": "adaclip", "test-part": part}
    return Cell("search" if part == "tuning" else "table", "AdaClip", config)


def adaclip_cells() -> list[Cell]:
    """AdaClip's row, with the step size that is best on the tuning part; none before its search."""
    tried = [(own[0], rate) for rate in ADACLIP_RATES if (own := adaclip_found(rate))]
    if len(tried) < len(ADACLIP_RATES):
        return []
    return [adaclip(epsilon, max(tried)[1]) for epsilon in SETTINGS]


def adaclip_found(rate: float) -> list[float]:
    """The accuracy of AdaClip's search at this step size."""
    return scores(RESULTS, adaclip(min(SETTINGS), rate, "tuning"), "accuracy")


def adaclip_table() -> str:
    """Markdown: AdaClip's row, and its search."""
    row = [spread(scores(RESULTS, made, "accuracy", FRESH), 100) for made in adaclip_cells()]
    found = markdown([f"AdaClip, epsilon {epsilon:g}" for epsilon in SETTINGS], [row] if row else [])
    tried = [(f"{rate:g}", spread(own, 100)) for rate in ADACLIP_RATES if (own := adaclip_found(rate))]
    return f"{found}\n\n{markdown(('step size', 'accuracy on the tuning part, %'), tried)}"


def table_cells() -> Iterator[Cell]:
    """The cells of the table: all methods at every budget, and dynamic with PLD budgets."""
    for method in PAPER:
        for epsilon, setting in SETTINGS.items():
            if method in DECAYED:
                yield decayed(method, epsilon)
            else:
                yield cell("table", method, epsilon, *setting)
    yield cell("table", "vanilla", *GENTLE)
    for epsilon, setting in SETTINGS.items():
        yield cell("certified", "dynamic", epsilon, *setting, accounting="pld")


def search_cells() -> Iterator[Cell]:
    """The runs from which the table's settings were chosen."""
    for epsilon, *setting in TRIED:
        yield cell("search", "dynamic", epsilon, *setting)


def table(
    path: Path, cells: Iterable[Cell], paper: Mapping[str, Sequence[float]], seeds: Sequence[int]
) -> str:
    """Markdown of a table of the paper: a row per method, test accuracy in percent, mean and spread over
    seeds, the paper's in brackets; and below it what each method of accounting says that the runs cost.

    Args:
        path: the finished runs.
        cells: the table's, each of a method and an epsilon.
        paper: the paper's accuracies of a method, by ascending epsilon.
        seeds: those of the runs that count.
    """
    cells = list(cells)
    epsilons = sorted({made.config["epsilon"] for made in cells})
    rows: dict[str, dict[float, str]] = {}
    costs = ["| run | epsilon | GDP-CLT | PLD | RDP | multiplier, first to last |", "|---" * 6 + "|"]
    records = {(Cell(**r["cell"]).key(), r["seed"]): r for r in read(path)}
    for made in cells:
        epsilon = made.config["epsilon"]
        name = f"{made.method}, {made.config['accounting']}, step size {made.config['learning-rate']:g}"
        found = scores(path, made, "accuracy", seeds)
        target = paper[made.method][epsilons.index(epsilon)]
        if found:
            rows.setdefault(name, {})[epsilon] = f"{spread(found, 100)} ({target:.2f})"
        if record := records.get((made.key(), seeds[0])):
            said = " | ".join(f"{record['epsilon'][m]['epsilon']:.3f}" for m in ("gdp-clt", "pld", "rdp"))
            z = record["noise multiplier"]
            costs.append(f"| {name} | {epsilon:g} | {said} | {z['first']:.3f} to {z['last']:.3f} |")
    head = "| run | " + " | ".join(f"epsilon {epsilon:g}" for epsilon in epsilons) + " |"
    lines = [head, "|---" * (1 + len(epsilons)) + "|"]
    for name, shown in rows.items():
        lines.append(f"| {name} | " + " | ".join(shown.get(epsilon, "") for epsilon in epsilons) + " |")
    return "\n".join([*lines, "", *costs])


def main() -> None:
    """See the module's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--official", action="store_true")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--adaclip", action="store_true")
    options = parser.parse_args()
    if options.run:
        batch(RESULTS, [(made, seed) for seed in FRESH for made in table_cells()])
    if options.official:
        batch(RESULTS, [(official(m), seed) for seed in FRESH for m in ("dynamic", "vanilla")])
    if options.search:
        batch(RESULTS, [(made, SEEDS[0]) for made in search_cells()])
    if options.adaclip:
        batch(RESULTS, [(adaclip(min(SETTINGS), rate, "tuning"), SEEDS[0]) for rate in ADACLIP_RATES])
        batch(RESULTS, [(made, seed) for made in adaclip_cells() for seed in FRESH])
    print("seeds", ", ".join(map(str, FRESH)), "\n")
    print(table(RESULTS, table_cells(), PAPER, FRESH))
    print("\nwith the official repository's settings\n")
    print(table(RESULTS, [official("dynamic"), official("vanilla")], PAPER, FRESH))
    print(f"\nwith AdaClip, scored by four fifths of the test images\n\n{adaclip_table()}")


if __name__ == "__main__":
    main()
