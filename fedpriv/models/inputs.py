"""The inputs and outputs for which a model is built: the shape of an example and the meaning of its numbers.

>>> Inputs((20,), classes=18, tokens=(58,)).kind
'sequence'
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv._internal import validation

Shape = tuple[int, ...]

NUMBERS, SEQUENCE, IDS = "numbers", "sequence", "ids"


@dataclass(frozen=True)
class Inputs:
    """The inputs (n, *shape) and outputs of a model.

    Attributes:
        shape: the shape of one example.
        classes: the number of labels or tags; 1 for a value.
        tokens: () if the inputs are floats; (V,) if they are sequences of ids below V, with 0 as padding on
            the right; two or more numbers if each column holds ids below its number.

    Raises ArgumentError unless all numbers are at least 1.
    """

    shape: Shape
    classes: int = 1
    tokens: Shape = ()

    def __post_init__(self) -> None:
        validation.integer("classes", self.classes, minimum=1)
        for side in self.shape:
            validation.integer("input shape", side, minimum=1)
        for count in self.tokens:
            validation.integer("tokens", count, minimum=1)

    @property
    def kind(self) -> str:
        """The kind of one example: ``numbers``, ``sequence`` (of tokens) or ``ids`` (columns of ids)."""
        return (NUMBERS, SEQUENCE)[len(self.tokens)] if len(self.tokens) < 2 else IDS
