"""Search for the fastest inference method of a model, by measurement: `temper bench`."""

from infrastructure.core.features import Command, Feature

FEATURE = Feature(
    name="inference",
    commands={
        "bench": Command(
            "infrastructure.features.inference.command",
            "measure which settings run a model fastest",
            "Use a model",
        )
    },
)
