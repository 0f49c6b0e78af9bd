"""Data files to try a deployment with: disjoint parts of a data set that needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpriv import data
from fedpriv._internal import validation
from fedpriv.data.client_files import write_client_file
from fedpriv.deployment.folders import Party

DATASET = "infinite-digits"


def write(nodes: Sequence[Party], examples: int) -> list[Path]:
    """Writes each node's data file, of this number of examples; the files.

    Raises ArgumentError, and writes nothing, if a file is there already.
    """
    files = [Path(node.policy["data-file"]) for node in nodes]
    if there := [str(path) for path in files if path.exists()]:
        raise validation.fail("data-file", there, "be a new file", "an owner's data is never written over")
    source = data.load(DATASET)
    for node, path in zip(nodes, files, strict=True):
        silos = data.Silos(node.nodes, examples, first=source.first)
        write_client_file(path, source, silos.examples(np.array([int(node.facts["partition"])]))[0])
    return files
