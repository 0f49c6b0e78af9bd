"""Data sets (sources), populations of clients, and the federated view that combines both.

>>> import numpy as np
>>> source = load("infinite-digits")
>>> x, y = source.batch(np.array([360, 10**12]))
>>> tuple(x.shape)
(2, 1, 28, 28)
"""

from fedpriv.data.arrays import Arrays
from fedpriv.data.files import MissingDataError, data_folder
from fedpriv.data.inputs import as_source
from fedpriv.data.loaders import load, names
from fedpriv.data.partitioning.populations import OneExample, Population, Silos, population
from fedpriv.data.partitioning.silo_slots import SiloSlots
from fedpriv.data.readers.hugging_face import hugging_face
from fedpriv.data.readers.image_folder import image_folder
from fedpriv.data.readers.table import table
from fedpriv.data.readers.users import users
from fedpriv.data.source import DataError, Indices, Pair, Source
from fedpriv.data.view import Batch, View

__all__ = [
    "Arrays",
    "Batch",
    "DataError",
    "Indices",
    "MissingDataError",
    "OneExample",
    "Pair",
    "Population",
    "SiloSlots",
    "Silos",
    "Source",
    "View",
    "as_source",
    "data_folder",
    "hugging_face",
    "image_folder",
    "load",
    "names",
    "population",
    "table",
    "users",
]
