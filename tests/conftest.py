"""One thread a process, since tests share their machine; and the same random examples in every run.

FEDPRIV_EXPLORE=1 has hypothesis look for new ones.
"""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile("repeatable", derandomize=True)
settings.load_profile("default" if os.environ.get("FEDPRIV_EXPLORE") else "repeatable")
