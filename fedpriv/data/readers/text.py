"""Texts as sequences of ids, without a vocabulary that would be counted in clients' data.

>>> ids(["ab", "c"], length=3).tolist()
[[98, 99, 0], [100, 0, 0]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fedpriv._internal import validation
from fedpriv._internal.lazy import numpy as np
from fedpriv.data.source import DataError, Indices

BYTES = 257  # 0 is padding; id k is the byte k - 1 of a text in UTF-8

Tokenizer = Callable[[str], Sequence[int]]


def of_bytes(text: str) -> list[int]:
    """The ids of a text's bytes in UTF-8; half a surrogate pair is three bytes, so that no text fails."""
    return [byte + 1 for byte in text.encode(errors="surrogatepass")]


def ids(texts: Iterable[str], length: int, tokenizer: Tokenizer | None = None, size: int = 0) -> Indices:
    """Sequences of ids (n, length), cut or padded with 0 on the right.

    Args:
        texts: the texts.
        length: ids of each, a public number.
        tokenizer: maps a text to its ids; None: :func:`of_bytes`. It must not be trained on clients' data.
        size: the number of ids of the tokenizer, 0 included.

    Raises:
        ArgumentError: ``length`` is not a whole number of at least 1.
        DataError: the tokenizer fails, or gives other ids. It quotes no text.
    """
    validation.integer("length", length, minimum=1)
    make, most = (of_bytes, BYTES) if tokenizer is None else (tokenizer, size)
    rows = []
    for text in texts:
        try:
            row = [int(one) for one in make(text)[:length]]
        except Exception as error:
            # The cause is dropped, because its text may quote the data.
            kind = type(error).__name__
            raise DataError(f"tokenizer failed with {kind}: it must map a text to a list of ids") from None
        if row and not 0 <= min(row) <= max(row) < most:
            hint = "vocabulary_size is the number of ids"
            raise DataError(f"tokenizer gave an id outside 0..{most - 1}; {hint}")
        rows.append(row + [0] * (length - len(row)))
    found: Indices = np.array(rows, np.int64).reshape(len(rows), length)
    return found
