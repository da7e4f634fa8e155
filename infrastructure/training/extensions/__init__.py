"""Extensions (hooks that may change the training state) and the events that call hooks."""

from infrastructure.core.lazy_exports import lazy_names

_PLACES = {
    "Event": "infrastructure.training.extensions.extension_hooks",
    "Extension": "infrastructure.training.extensions.extension_hooks",
    "ExtensionManager": "infrastructure.training.extensions.extension_manager",
    "Observer": "infrastructure.training.extensions.extension_hooks",
    "register_extension": "infrastructure.training.extensions.extension_manager",
}

__all__ = [*_PLACES]
__getattr__ = lazy_names(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
