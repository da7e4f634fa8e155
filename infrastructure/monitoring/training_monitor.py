"""The monitor of a training: comes with part C; its names say so when they are imported."""

from infrastructure.core.lazy import lazy_names

__getattr__ = lazy_names(__name__, {}, {"TrainingMonitor": "C", "TrainingMetrics": "C"})
