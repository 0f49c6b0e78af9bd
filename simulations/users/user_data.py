"""The data of the tables, read once in a process, and the model of characters: user_data:NAME in the sweeps.

Files are under $FEDPRIV_DATA: ``shakespeare-roles/roles.jsonl.gz`` (a line for each speaking role, with its
text) and ``cifar-10-jpeg/plain_text`` (Parquet files of JPEG images, as on the Hugging Face hub).
"""

from __future__ import annotations

from functools import cache

from torch import nn

from fedpriv.data import Arrays, Source, hugging_face, load, users
from fedpriv.data.files import data_folder
from fedpriv.models import Inputs
from fedpriv.models.layers import LastState

LENGTH, STRIDE, MOST = 20, 40, 8


@cache
def shakespeare() -> Arrays:
    """Roles of 200 characters or more, a role a user: the byte that follows 20 others, 8 examples a role.

    About a tenth of the roles, by a hash of their names, are public: the test examples.
    """
    path = data_folder(None) / "shakespeare-roles" / "roles.jsonl.gz"
    return users(path, least_characters=200, length=LENGTH, stride=STRIDE, most=MOST)


def characters(inputs: Inputs) -> nn.Module:
    """The next byte: embedding of 8, one LSTM layer of 64, linear layer."""
    return LastState(inputs.tokens[0], inputs.classes, embedding=8, hidden=64)


@cache
def cifar() -> Arrays:
    """CIFAR-10 (JPEG): 50,000 training and 10,000 test images whose pixels JPEG has changed slightly."""
    return hugging_face(data_folder(None) / "cifar-10-jpeg" / "plain_text")


@cache
def synthetic() -> Source:
    """synthetic(1, 1) of Li et al. 2020 with 300 devices."""
    return load("synthetic-1-1", devices=300)


@cache
def movielens() -> Source:
    """MovieLens-100k."""
    return load("movielens-100k")


@cache
def infinite_mnist() -> Source:
    """InfiniteMNIST."""
    return load("infinite-mnist")
