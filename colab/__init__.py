"""The notebook's side of Temper, and the only code that knows where a notebook runs.

`import colab` needs nothing but Python, so that `colab.install()` can be a notebook's first line.
The names below can be taken from here; what is behind them is loaded when it is asked for.
"""

from infrastructure.core.lazy import lazy_names

_PLACES: dict[str, str] = {
    "download_results": "colab.downloading_results",
    "fetch_dataset": "colab.fetching_data",
}

__all__ = [*_PLACES]
__getattr__ = lazy_names(__name__, _PLACES, {})


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
