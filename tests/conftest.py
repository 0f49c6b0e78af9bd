"""One thread a process: tests share their machine, and waiting threads only slow each other down."""

import torch

torch.set_num_threads(1)
