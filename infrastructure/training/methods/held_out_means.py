"""Numbers of held-out pairs as means over the pairs."""

from collections.abc import Mapping
from typing import Any


def weigh_pairs(trainer: Any) -> None:
    """Have an evaluation of `trainer`, one of TRL's that trains on pairs, report such means.

    TRL collects one number of each batch, and logs the mean of these: of 14 pairs in batches of 8
    and 6, a pair in the second weighs more, and 75 % come out as ranked rightly, which is no number
    of pairs. Here each number is weighed by the pairs of its batch before it is logged. One that
    is not collected once a batch stays as TRL has it.
    """
    name = "_metrics" if hasattr(trainer, "_metrics") else "_stored_metrics"  # the latter: ORPO
    collected = getattr(trainer, name)
    predict, log, sizes = trainer.prediction_step, trainer.log, []

    def prediction_step(model: Any, inputs: Mapping[str, Any], *others: Any, **named: Any) -> Any:
        # of each pair both answers, or the chosen one: in proportion to the pairs
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
