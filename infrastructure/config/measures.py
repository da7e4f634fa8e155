"""The names of the measures of held-out results, and for each whether higher is better.

The code that computes them is in `infrastructure.evaluation` and, for single tokens, in
`infrastructure.models.token_functions`.
"""

from enum import Enum


class Of(Enum):
    """The unit that a measure averages over."""

    TOKENS = "tokens"  # tokens that the loss covers
    ROWS = "rows"  # rows, each answered by the model with greedy decoding


LOSS = "loss"
PERPLEXITY = "perplexity"
TOKEN_ACCURACY = "token_accuracy"
EXACT_MATCH = "exact_match"
FINAL_ANSWER = "final_answer"
F1 = "f1"
ROUGE2 = "rouge2"
ROUGE = ("rouge1", ROUGE2, "rougeL")

MEASURES: dict[str, Of] = {
    LOSS: Of.TOKENS,
    PERPLEXITY: Of.TOKENS,
    TOKEN_ACCURACY: Of.TOKENS,
    EXACT_MATCH: Of.ROWS,
    FINAL_ANSWER: Of.ROWS,
    F1: Of.ROWS,
    **dict.fromkeys(ROUGE, Of.ROWS),
}
LOWER_IS_BETTER = (LOSS, PERPLEXITY)
OF_TORCHMETRICS = (F1, *ROUGE)  # a separate package


def is_greater_better(measure: str) -> bool:
    """Return whether a higher value of a built-in measure is better."""
    return measure not in LOWER_IS_BETTER
