"""What a model is built for: one example's shape, and what its numbers mean.

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
        shape: of one example.
        classes: labels or tags; 1 for a value.
        tokens: () where the inputs are floats; (V,) where they are sequences of ids below V, 0 being the
            padding on the right; more for columns of ids, each below its own number.

    Raises ArgumentError unless all of them are at least 1.
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
        """What one example is: numbers, a sequence of tokens, or columns of ids."""
        return (NUMBERS, SEQUENCE)[len(self.tokens)] if len(self.tokens) < 2 else IDS
