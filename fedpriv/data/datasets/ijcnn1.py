"""ijcnn1: the IJCNN 2001 competition in LIBSVM's format, 22 features, 2 labels."""

from __future__ import annotations

from fedpriv.data import libsvm
from fedpriv.data.registry import files, register

register(
    "ijcnn1", files("ijcnn1", "ijcnn1", "ijcnn1.t"), lambda paths: libsvm.read("ijcnn1", paths, features=22)
)
