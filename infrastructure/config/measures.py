"""Names of what is measured on held-out rows, and which way each of them is better.

What computes them lies in `infrastructure.evaluation` and, of single tokens, in
`infrastructure.training.models.token_functions`.
"""

from enum import Enum


class Of(Enum):
    """What a measure is a mean over."""

    TOKENS = "tokens"  # of what the loss is on
    ROWS = "rows"  # each answered by the model, greedily


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
OF_TORCHMETRICS = (F1, *ROUGE)  # a package of its own


def is_greater_better(measure: str) -> bool:
    """Of a measure that is built in."""
    return measure not in LOWER_IS_BETTER
