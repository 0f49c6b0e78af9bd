"""The server: federated averaging of the clients' models."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from mnist_app import data, model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured number of rounds."""
    share = float(context.run_config["fraction-train"])
    strategy = FedAvg(fraction_train=share, fraction_evaluate=0.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.build().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    print(f"test accuracy: {evaluate(0, result.arrays)['accuracy']:.4f}")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The accuracy on the server's own test images."""
    x, y = (torch.from_numpy(values) for values in data.test())
    net = model.build()
    net.load_state_dict(arrays.to_torch_state_dict())
    net.eval()
    with torch.no_grad():
        return MetricRecord({"accuracy": float((net(x).argmax(1) == y).float().mean())})
