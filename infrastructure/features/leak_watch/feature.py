"""Detection of memory leaks: the extension `leak_watch`."""

from infrastructure.core.features import Feature

FEATURE = Feature(
    name="leak_watch",
    adds_weights=False,
    plugins={
        "temper.extensions": {
            "leak_watch": "infrastructure.features.leak_watch.extension:LeakExtension"
        }
    },
)
