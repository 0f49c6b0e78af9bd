"""Torch tensors, torch data sets, lists and names of users in the place of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import fedpriv
from fedpriv.data import Arrays, DataError, as_source
from fedpriv.data.source import Pair

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 1, 0])


def batch(source: Any) -> Pair:
    return source.batch(np.arange(4))


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


FORMS = {
    "tensor": torch.from_numpy(X),
    "tensor with a gradient": torch.from_numpy(X.copy()).requires_grad_(),
    "half precision": torch.from_numpy(X).to(torch.bfloat16),
    "float64": X.astype(np.float64),
    "int64": X.astype(np.int64),
    "lists": X.tolist(),
    "list of arrays": list(X),
    "list of tensors": list(torch.from_numpy(X)),
    "tuple": tuple(map(tuple, X.tolist())),
    "read-only": read_only(X),
    "big-endian": X.astype(">f4"),
    "reversed": X[::-1][::-1],
    "columns first": np.asfortranarray(X),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_numbers_is_the_same_data_without_a_warning(form: str) -> None:
    source = Arrays("toy", FORMS[form], Y.tolist(), FORMS[form], torch.from_numpy(Y), classes=2)
    assert batch(source).x.tolist() == X.tolist()
    assert batch(source).x.dtype == torch.float32
    assert batch(source).y.tolist() == Y.tolist()
    assert source.test().y.dtype == torch.int64


@pytest.mark.parametrize(
    "labels", [Y > 0, torch.from_numpy(Y > 0), Y.astype(np.uint8), Y.astype(np.int32), Y.tolist()]
)
def test_labels_of_any_whole_type(labels: Any) -> None:
    assert batch(Arrays("toy", X, labels, X, labels, classes=2)).y.tolist() == Y.tolist()


def test_tokens_tags_and_values_from_lists_and_tensors() -> None:
    words = Arrays("toy", [[1, 2], [3, 0]], [0, 1], torch.tensor([[1, 2]]), [0], classes=2, tokens=(5,))
    assert words.test().x.tolist() == [[1, 2]]
    tags = Arrays("toy", X, torch.eye(4), X, np.eye(4, dtype=bool), classes=4, target="tags")
    assert tags.test().y.tolist() == np.eye(4).tolist()
    values = Arrays("toy", X, [0.5, 1, 2, 3], X, torch.ones(4, dtype=torch.float64), target="value")
    assert values.test().y.dtype == torch.float32


@pytest.mark.parametrize(
    "owners", [["bob", "ann", "bob", "cid"], np.array(["bob", "ann", "bob", "cid"], dtype=object),
               np.array([b"bob", b"ann", b"bob", b"cid"]), torch.tensor([1, 0, 1, 2]), [1, 0, 1, 2]],
)  # fmt: skip
def test_owners_are_names_or_numbers(owners: Any) -> None:
    source = Arrays("toy", X, Y, X, Y, classes=2, owners=owners)
    assert source.owners is not None
    assert source.owners.tolist() == [1, 0, 1, 2]
    assert source.owners.dtype == np.int64


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        (["bob", "ann"], "one owner for each training example"),
        ([0.5, 1, 1, 1], "these are float64"),
        (["bob", 3, None, "x"], "a name or a number"),
        ([[1, 2], [3, 4]], "a name or a number"),
    ],
)
def test_other_owners_are_refused(owners: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Arrays("toy", X, Y, X, Y, classes=2, owners=owners)


def test_a_federation_of_named_users() -> None:
    x = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    y, users = (x[:, 0] > 0).astype(np.int64), [f"user {i % 20}" for i in range(60)]
    source = Arrays("toy", x, y, x, y, classes=2, owners=users)
    result = fedpriv.simulate(
        dataset=source, partition="natural", model="logistic", sampling_rate=0.5, rounds=2, delta=1e-3
    )
    assert result.config.clients == 20


def test_images_of_pillow_have_their_channels_in_front() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 6, 3)).astype(np.uint8)

    class Pictures(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return image.fromarray(pixels[index]), int(Y[index])

    source = as_source((Pictures(), Pictures()))
    assert source.shape == (3, 8, 6)
    assert source.name == "Pictures"
    torch.testing.assert_close(batch(source).x, torch.from_numpy(pixels).movedim(3, 1) / 255)


class Broken(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[Any, int]:
        raise KeyError("no such file")


def test_an_error_of_a_data_set_says_where() -> None:
    with pytest.raises(
        fedpriv.UserCodeError, match=r"KeyError: 'no such file', at .*test_inputs\.py, line \d+"
    ):
        as_source((Broken(), Broken()))


def test_examples_of_two_shapes_are_refused() -> None:
    class Ragged(Broken):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            return torch.zeros(index + 1), 0

    with pytest.raises(DataError, match="must have one shape"):
        as_source((Ragged(), Ragged()))
