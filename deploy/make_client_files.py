"""Write the data files of a small deployment: one `.npz` a client, disjoint, with no pickled objects.

    python deploy/make_client_files.py FOLDER [--dataset infinite-digits] [--clients 2] [--examples 5000]

Client k's file, ``FOLDER/client-k.npz``, holds ``x`` and ``y`` of n examples: uint8 (n, 28, 28) and labels
(n,) for images, and what :mod:`fedpriv.data.client_files` lists for other data sets. A real
client writes such a file from its own data instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fedpriv import data
from fedpriv._internal.validation import ArgumentError
from fedpriv.data.client_files import write_client_file


def write_files(folder: Path, dataset: str, clients: int, examples: int) -> list[Path]:
    """Write ``clients`` files of ``examples`` examples each into ``folder``; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    source = data.load(dataset)
    silos = data.Silos(clients, examples, first=source.first)
    paths = [folder / f"client-{client}.npz" for client in range(clients)]
    for client, path in enumerate(paths):
        write_client_file(path, source, silos.examples(np.array([client]))[0])
    return paths


def main() -> None:
    """Parse the command line, write, and say what was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dataset", default="infinite-digits", help="see `fedpriv data list`")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--examples", type=int, default=5000, help="examples of each client")
    options = parser.parse_args()
    for name in ("clients", "examples"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    try:
        for path in write_files(options.folder, options.dataset, options.clients, options.examples):
            print(path)
    except (ArgumentError, data.DataError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
