"""The publication of models on the Hugging Face Hub, and the card of a model."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.publish"

FEATURE = Feature(
    name="publish",
    additions={"export": f"{_HERE}.command"},
    export_files=(f"{_HERE}.model_card:write_card",),
)
