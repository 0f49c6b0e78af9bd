"""The client: trains the model on its own images."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from mnist_app import data, model

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Ten steps of SGD, each on a tenth of this client's images."""
    number, count = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    x, y = (torch.from_numpy(values) for values in data.client(number, count))
    net = model.build()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for images, labels in zip(x.chunk(10), y.chunk(10), strict=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(content=RecordDict(content), reply_to=message)
