"""a9a: incomes of adults in LIBSVM's format, 123 features, 2 labels."""

from __future__ import annotations

from fedpriv.data import libsvm
from fedpriv.data.registry import files, register

register("a9a", files("a9a", "a9a", "a9a.t"), lambda paths: libsvm.read("a9a", paths, features=123))
