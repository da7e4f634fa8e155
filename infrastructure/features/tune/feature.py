"""Measurement of the settings that make a run fastest on this machine."""

from infrastructure.core.features import Command, Feature

_HERE = "infrastructure.features.tune"

FEATURE = Feature(
    name="tune",
    commands={
        "tune": Command(
            f"{_HERE}.command",
            "measure which settings train fastest on this machine",
            "Before you train",
        )
    },
    notebook={"find_fastest": f"{_HERE}.tuning"},
)
