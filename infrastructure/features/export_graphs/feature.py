"""Exports as graphs (ONNX and torch.export), which run without the model's Python code."""

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
