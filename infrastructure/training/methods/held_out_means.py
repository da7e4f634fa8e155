"""Correct averages of evaluation metrics over held-out pairs of answers."""

from collections.abc import Mapping
from typing import Any


def weigh_pairs(trainer: Any) -> None:
    """Make a TRL trainer for pairs of answers report its evaluation metrics as means over all
    pairs.

    TRL collects one number per batch and logs the mean of these numbers. With 14 pairs in batches
    of 8 and 6, a pair in the second batch weighs more, and the accuracy may be 75 %, which is not a
    whole number of pairs. This function weights each number by the number of pairs in its batch.
    Numbers that TRL does not collect once per batch stay unchanged.
    """
    name = "_metrics" if hasattr(trainer, "_metrics") else "_stored_metrics"  # the latter in ORPO
    collected = getattr(trainer, name)
    predict, log, sizes = trainer.prediction_step, trainer.log, []

    def prediction_step(model: Any, inputs: Mapping[str, Any], *others: Any, **named: Any) -> Any:
        # the ids are of both answers of each pair, or of the chosen one: in proportion to the pairs
        sizes.append(next(len(ids) for name, ids in inputs.items() if name.endswith("input_ids")))
        return predict(model, inputs, *others, **named)

    def log_weighed(*others: Any, **named: Any) -> None:
        for name, values in collected["eval"].items():
            if len(values) == len(sizes):
                total = sum(size * value for size, value in zip(sizes, values, strict=True))
                collected["eval"][name] = [total / sum(sizes)]
        sizes.clear()
        log(*others, **named)

    trainer.prediction_step, trainer.log = prediction_step, log_weighed
