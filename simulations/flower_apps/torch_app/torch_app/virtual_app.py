"""The same clients as in client_app.py, for simulations: two nodes stand for all 100 of them.

The server's strategy is ``PrivateStrategy(virtual_clients=True, population=100, ...)``, and pyproject.toml
names this app: ``clientapp = "torch_app.virtual_app:app"``.
"""

import torch.nn.functional as F

from fedpriv.flower import virtual_clients
from torch_app import data, model


def examples(client: int):
    """The images and labels of one client."""
    return data.client(client, 100)


@virtual_clients(model=model.build, examples=examples, steps=5, learning_rate=0.1)
def client(model, x, y):
    """The loss of one client."""
    return F.cross_entropy(model(x), y)


app = client  # Flower looks for an assignment
