"""Exports of a run's metrics to TensorBoard, Prometheus, Trackio and Weights & Biases."""
