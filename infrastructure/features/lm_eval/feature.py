"""Evaluation on tasks of lm-evaluation-harness: `temper eval MODEL --tasks gsm8k`."""

from infrastructure.core.features import Feature

FEATURE = Feature(
    name="lm_eval",
    additions={"eval": "infrastructure.features.lm_eval.command"},
)
