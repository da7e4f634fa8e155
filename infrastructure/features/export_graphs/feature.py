"""Exports as graphs, which need none of a model's own code: ONNX and torch.export programs."""

from infrastructure.core.features import Feature

_FORMATS = "infrastructure.features.export_graphs.graph_formats"

FEATURE = Feature(
    name="export_graphs",
    plugins={
        "temper.export_formats": {
            "onnx": f"{_FORMATS}:OnnxFormat",
            "torch-export": f"{_FORMATS}:TorchExportFormat",
        }
    },
)
