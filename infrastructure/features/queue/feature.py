"""A queue: runs that train one after another, such as overnight."""

from infrastructure.core.features import Command, Feature

FEATURE = Feature(
    name="queue",
    commands={
        "queue": Command(
            "infrastructure.features.queue.command",
            "train several runs one after another",
            "Train",
            resuming=("queue run",),
        )
    },
)
