"""The server: federated averaging of the clients' models."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sklearn_app import data, model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured number of rounds."""
    strategy = FedAvg(fraction_train=0.5)
    result = strategy.start(
        grid=grid,
        initial_arrays=model.start(),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    print(f"test accuracy: {evaluate(0, result.arrays)['accuracy']:.4f}")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The accuracy on the server's own test images."""
    x, y = data.test()
    return MetricRecord({"accuracy": float(model.build(arrays).score(x, y))})
