"""Exports as graphs: ONNX and torch.export programs."""
