"""Search for the fastest inference method of a model, by measurement: `temper bench`."""

from infrastructure.core.features import Command, Feature

FEATURE = Feature(
    name="inference",
    commands={
        "bench": Command(
            "infrastructure.features.inference.command",
            "find the fastest way to run a model",
            "Use a model",
        )
    },
)
