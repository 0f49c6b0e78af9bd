"""An MLflow run."""

from __future__ import annotations

from collections.abc import Mapping

from fedpriv.federated.stop_reason import StopReason
from fedpriv.runs.exporters.base import Exporter, parameters, require
from fedpriv.runs.result import Result


class MLflow(Exporter):
    """Logs to a new run of an MLflow experiment.

    Args:
        experiment: its name; made where there is none.
        tracking_uri: where MLflow keeps its runs; None is MLflow's own setting.
        run_name: the run's name; None lets MLflow choose one.

    Raises MissingDependencyError where mlflow is not installed.
    """

    def __init__(
        self, experiment: str = "fedpriv", tracking_uri: str | None = None, run_name: str | None = None
    ) -> None:
        client = require("mlflow", "mlflow").MlflowClient(tracking_uri=tracking_uri)
        found = client.get_experiment_by_name(experiment)
        identity = client.create_experiment(experiment) if found is None else found.experiment_id
        self._client, self._run = client, client.create_run(identity, run_name=run_name).info.run_id

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """As metrics."""
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=step)

    def on_end(self, result: Result) -> None:
        """The settings as parameters; the run is closed."""
        for key, value in parameters(result).items():
            self._client.log_param(self._run, key, value)
        failed = result.stopped == StopReason.FAILED
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")
