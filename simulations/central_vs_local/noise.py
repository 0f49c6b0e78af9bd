"""The noise on a mean of m contributions at equal epsilon: central falls with m, local with sqrt(m).

    python simulations/central_vs_local/noise.py --out simulations/central_vs_local

writes noise.csv and noise.png from public settings alone, in about a minute; nothing is trained.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

from fedpriv._internal import plotting
from fedpriv.config.schema import Config
from fedpriv.simulation import compare, noise_table

COHORTS = (50, 200, 1000, 5000, 20000)
PLACED = ("central", "distributed", "local")
SETTINGS: dict[str, Any] = {
    "model": "logistic",
    "optimizer": "dp-sgd",
    "sampler": "fixed-size",
    "sampling-rate": 0.05,
    "rounds": 20,
    "epsilon": 1.0,
    "delta": 1e-7,
    "max-participations": 1,
    "placement": "local",
}


def table(cohorts: tuple[int, ...] = COHORTS) -> list[dict[str, Any]]:
    """A row for each cohort and placement; the population is twenty times the cohort."""
    found = []
    for cohort in cohorts:
        config = Config.parse({**SETTINGS, "clients": 20 * cohort})
        found += [{"cohort": cohort, **row} for row in noise_table.rows(compare.plans(config, PLACED))]
    return found


def main() -> None:
    """Write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    folder, rows = parser.parse_args().out, table()
    with (folder / "noise.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    figure, [axes] = plotting.panels(7, 4.4)
    for name, (color, dashes, marker) in zip(PLACED, plotting.STYLES, strict=False):
        own = [row for row in rows if row["placement"] == name]
        at, noise = ([row[key] for row in own] for key in ("cohort", "noise on the mean"))
        label = f"{name}: epsilon {SETTINGS['epsilon']:g} against {own[0]['defends against']}"
        axes.plot(at, noise, color=color, linestyle=dashes, marker=marker, label=label)
    axes.set(xscale="log", yscale="log", xlabel="cohort m, of 20 m clients")
    axes.set_ylabel("noise on the mean, in clip norms")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower left")
    plotting.title(figure, ["At equal epsilon the gap grows with the square root of the cohort"])
    plotting.footer(
        figure,
        [
            "20 rounds; unit: a client; replace-one; delta 1e-7; PLD. The adversary differs, as the legend "
            "says. A client gives data to one round under local noise.",
        ],
    )
    (folder / "noise.png").write_bytes(plotting.png(figure))


if __name__ == "__main__":
    main()
