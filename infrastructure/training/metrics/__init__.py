"""Output of a run's metrics: the metrics logger, its sinks, and the progress display."""

from infrastructure.core.lazy_exports import lazy_names

_PLACES = {
    "MetricsLogger": "infrastructure.training.metrics.metrics_logger",
}

__all__ = [*_PLACES]
__getattr__ = lazy_names(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
