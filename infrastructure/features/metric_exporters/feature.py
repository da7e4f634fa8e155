"""Exports of a run's metrics to TensorBoard, Prometheus, Trackio and Weights & Biases."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.metric_exporters"

FEATURE = Feature(
    name="metric_exporters",
    fields={"monitor": f"{_HERE}.config:PrometheusMonitor"},
    plugins={
        "temper.sinks": {
            "tensorboard": f"{_HERE}.tensorboard_sink:TensorBoardSink",
            "trackio": f"{_HERE}.tracker_sinks:TrackioSink",
            "wandb": f"{_HERE}.tracker_sinks:WandbSink",
        }
    },
    default_plugins={"temper.sinks": ("tensorboard",)},
    watchers=(f"{_HERE}.prometheus:endpoint", f"{_HERE}.tensorboard_sink:machine_events"),
    outputs={"tensorboard": "metric_exporters.path_tensorboard"},
)
