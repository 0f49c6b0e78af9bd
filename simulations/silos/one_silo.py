"""The digits of one silo as a data set of its own: `dataset = "simulations.silos.one_silo:silo_3"`.

A silo alone is a run of one silo. Silo k has the examples that it has in `sweep.toml`, where each silo takes
140 in a row; the public test part is the whole one.
"""

from __future__ import annotations

from functools import partial

from fedpriv.data import Arrays, Source, load

SILOS, EXAMPLES = 10, 140


def one_silo(number: int) -> Source:
    """The digits of the silo with this number, from 0."""
    whole = load("digits")
    x, y = (part.numpy() for part in whole.batch(range(EXAMPLES * number, EXAMPLES * (number + 1))))
    test_x, test_y = (part.numpy() for part in whole.test())
    return Arrays(f"digits of silo {number}", x, y, test_x, test_y, whole.classes)


silo_0, silo_1, silo_2, silo_3, silo_4, silo_5, silo_6, silo_7, silo_8, silo_9 = (
    partial(one_silo, number) for number in range(SILOS)
)
