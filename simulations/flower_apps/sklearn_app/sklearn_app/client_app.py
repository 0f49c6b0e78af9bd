"""The client: one pass of scikit-learn's SGD over its own images."""

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from sklearn_app import data, model

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on all images of this client."""
    number, count = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    x, y = data.client(number, count)
    classifier = model.build(message.content["arrays"])
    classifier.partial_fit(x, y, classes=np.arange(10))
    content = {"arrays": model.arrays_of(classifier), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)
