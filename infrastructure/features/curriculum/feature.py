"""Curriculum learning: easy examples first, harder ones from stage to stage."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.curriculum"

FEATURE = Feature(
    name="curriculum",
    fields={"training": f"{_HERE}.config:CurriculumTraining"},
    plugins={
        "temper.strategies": {"curriculum": f"{_HERE}.curriculum_strategy:CurriculumStrategy"}
    },
    contradictions=f"{_HERE}.config:CONTRADICTIONS",
)
