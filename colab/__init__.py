"""The functions for notebooks, and the only code that depends on the platform (Colab, Kaggle, …).

`import colab` needs only Python, so that `colab.install()` can be the first line of a notebook. The
names below can be imported from this package. The code behind a name is loaded on first use.
"""

import importlib.util

try:
    from infrastructure.core.features import merged
    from infrastructure.core.lazy_exports import lazy_names
except Exception as error:  # whatever another package of that name raises, as in `temper`
    _origin = getattr(importlib.util.find_spec("infrastructure"), "origin", None)
    raise ImportError(
        f"Temper's package `infrastructure` is hidden by another of that name, {_origin}, which"
        f" Python finds first ({error}): rename that folder, or start the notebook in another one"
    ) from None

_PLACES: dict[str, str] = {
    "ConfigForm": "colab.form",
    "LivePanel": "colab.live_panel",
    "Platform": "colab.runtime",
    "Session": "colab.session",
    "SessionClock": "colab.session_clock",
    "StorageFolder": "colab.drive",
    "TemperCallback": "infrastructure.training.hf_bridge",
    "ask": "colab.results",
    "attach": "colab.training",
    "begin": "colab.session",
    "bring_secrets": "colab.secrets",
    "configure": "colab.settings",
    "download_results": "colab.downloading_results",
    "evaluate": "colab.results",
    "export": "colab.results",
    "fetch_dataset": "colab.fetching_data",
    "flush_drive": "colab.drive",
    "forecast": "infrastructure.deployment.forecast",
    "get_secret": "colab.secrets",
    "has_browser": "colab.runtime",
    "install": "colab.bootstrap",
    "mount_drive": "colab.drive",
    "platform": "colab.runtime",
    "rehearse_disconnect": "colab.rehearsal",
    "release_runtime": "colab.release",
    "sample_chats": "colab.results",
    "show_data": "colab.results",
    "show_form": "colab.form",
    "show_report": "colab.results",
    "stop": "colab.training",
    "train": "colab.training",
}

_PLACES |= merged("notebook")
__all__ = [*_PLACES]
__getattr__ = lazy_names(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
