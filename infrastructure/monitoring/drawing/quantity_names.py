"""Display names of a run's metrics, and whether higher or lower is better.

In files, metrics have the names that trainers give them. For example, TRL's `rewards/margins` in a
file is "margin of chosen over rejected" on the screen.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infrastructure.monitoring.drawing.formatting import format_number, format_share, printable
from infrastructure.monitoring.drawing.html import readable_key

HIGHER, LOWER = "higher is better", "lower is better"
OF_ONE_REWARD = re.compile(r"rewards/(?P<name>.+)/(?P<what>mean|std)")
HELD_OUT = "eval_"
RANKING, MARGIN = "rewards/accuracies", "rewards/margins"
TINY_MARGIN = 1e-6  # the rounding error of two equal rewards
RANKED = "pairs ranked correctly"


@dataclass(frozen=True)
class QuantityName:
    """The display name and format of a quantity.

    Attributes:
        title: the display name.
        better: the words "higher is better" or "lower is better", or "" if neither is true.
        is_share: whether the quantity is between 0 and 1 and shown in percent.
        is_detail: whether the quantity is shown in the report but not in the table at the end of a
            run.
    """

    title: str
    better: str = ""
    is_share: bool = False
    is_detail: bool = False

    @property
    def with_direction(self) -> str:
        """The title with the direction: `mean reward (higher is better)`."""
        return f"{self.title} ({self.better})" if self.better else self.title


# Metrics of TRL's trainers and of the dialogue adapter, in the order of a table. "Chosen" and
# "rejected" are columns of the data. Only their difference has a direction: both often fall while
# it grows.
KNOWN = {
    RANKING: QuantityName(RANKED, HIGHER, is_share=True),
    "accuracy": QuantityName("accuracy", HIGHER),  # also a common name of custom metrics
    MARGIN: QuantityName("margin of chosen over rejected", HIGHER),
    "margin": QuantityName("margin", HIGHER),
    "rewards/chosen": QuantityName("reward of chosen answers"),
    "rewards/rejected": QuantityName("reward of rejected answers"),
    "log_odds_chosen": QuantityName("log odds of chosen over rejected", HIGHER),
    "log_odds_ratio": QuantityName("odds ratio in the loss", HIGHER, is_detail=True),
    "nll_loss": QuantityName("loss of chosen answers", LOWER),
    "reward": QuantityName("mean reward", HIGHER),
    "reward_std": QuantityName("spread of rewards in a group", is_detail=True),
    "frac_reward_zero_std": QuantityName("groups with equal rewards", LOWER, is_share=True),
    "mean_reward": QuantityName("mean reward", is_detail=True),
    "min_reward": QuantityName("lowest reward", is_detail=True),
    "max_reward": QuantityName("highest reward", is_detail=True),
    "mean_token_accuracy": QuantityName("tokens predicted correctly", HIGHER, is_share=True),
    "kl": QuantityName("distance from the initial model (KL)"),
    "completions/mean_length": QuantityName("length of answers, tokens"),
    "completions/clipped_ratio": QuantityName("answers cut off", LOWER, is_share=True),
    "completions/min_length": QuantityName("shortest answer, tokens", is_detail=True),
    "completions/max_length": QuantityName("longest answer, tokens", is_detail=True),
    "completions/mean_terminated_length": QuantityName(
        "length of completed answers", is_detail=True
    ),
    "completions/min_terminated_length": QuantityName("shortest completed answer", is_detail=True),
    "completions/max_terminated_length": QuantityName("longest completed answer", is_detail=True),
    "logps/chosen": QuantityName("log-probability of chosen answers", is_detail=True),
    "logps/rejected": QuantityName("log-probability of rejected answers", is_detail=True),
    "logits/chosen": QuantityName("mean logit in chosen answers", is_detail=True),
    "logits/rejected": QuantityName("mean logit in rejected answers", is_detail=True),
    "entropy": QuantityName("uncertainty over the next token (entropy)", is_detail=True),
    "aux_loss": QuantityName("uneven load of experts (loss)", LOWER, is_detail=True),
    "loss_first_answers": QuantityName("loss of first answers", LOWER),
    "loss_later_answers": QuantityName("loss of later answers", LOWER),
    "end_accuracy": QuantityName("answer ends predicted correctly", HIGHER, is_share=True),
    "clip_ratio/low_mean": QuantityName("tokens clipped below", is_share=True, is_detail=True),
    "clip_ratio/high_mean": QuantityName("tokens clipped above", is_share=True, is_detail=True),
    "clip_ratio/region_mean": QuantityName("tokens clipped", is_share=True, is_detail=True),
    "clip_ratio/low_min": QuantityName(
        "tokens clipped below, minimum", is_share=True, is_detail=True
    ),
    "clip_ratio/high_max": QuantityName(
        "tokens clipped above, maximum", is_share=True, is_detail=True
    ),
    # possible values of `training.best_metric`
    "exact_match": QuantityName("exact match", HIGHER, is_share=True),
    "final_answer": QuantityName("correct final answers", HIGHER, is_share=True),
    "token_accuracy": QuantityName("token accuracy", HIGHER, is_share=True),
    "perplexity": QuantityName("perplexity", LOWER),
}


def bare_key(key: str) -> str:
    """Return the key of a held-out metric without its prefix."""
    return key.removeprefix(HELD_OUT)


def without_ties(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics without the share of correctly ranked pairs, if all pairs are tied.

    If the model equals its reference model, as before training, the two answers of each pair have
    the same reward. TRL counts such a tie as wrong.
    """
    margins = [value for key, value in numbers.items() if bare_key(key) == MARGIN]
    is_tied = any(isinstance(m, int | float) and abs(m) <= TINY_MARGIN for m in margins)
    return {key: v for key, v in numbers.items() if not (is_tied and bare_key(key) == RANKING)}


def without_tied_points(
    points: Mapping[str, Sequence[tuple[float, float]]],
) -> dict[str, list[tuple[float, float]]]:
    """Return key → (step, value), without ranking shares at steps where all pairs are tied.

    See `without_ties`.
    """
    kept = {key: list(pairs) for key, pairs in points.items()}
    for prefix in ("", HELD_OUT):
        tied = {
            step
            for step, margin in points.get(f"{prefix}{MARGIN}", [])
            if abs(margin) <= TINY_MARGIN
        }
        key = f"{prefix}{RANKING}"
        if key in kept:
            kept[key] = [(step, value) for step, value in kept[key] if step not in tied]
    return {key: pairs for key, pairs in kept.items() if pairs or not points[key]}


def name_of(key: str) -> QuantityName:
    """Return the display name and format of a metric. An unknown key is turned into words."""
    key = bare_key(key)
    if key in KNOWN:
        return KNOWN[key]
    if (match := OF_ONE_REWARD.fullmatch(key)) is not None:
        reward, is_mean = match["name"].replace("_", " "), match["what"] == "mean"
        title = f"reward {printable(reward)}" + ("" if is_mean else ", spread")
        return QuantityName(title, HIGHER if is_mean else "", is_detail=not is_mean)
    return QuantityName(printable(readable_key(key)))


def name_and_value(key: str, value: float) -> tuple[str, str]:
    """Return the display name and the formatted value of a metric. Unknown keys are unchanged."""
    if bare_key(key) not in KNOWN:
        return printable(key), format_number(value)
    name = name_of(key)
    return name.title, (format_share if name.is_share else format_number)(value)


def in_order(keys: list[str]) -> list[str]:
    """Return keys in the order of a table: known ones first, then the rest in the given order."""
    places = {key: place for place, key in enumerate(KNOWN)}

    def place_of(key: str) -> int:
        of_one_reward = OF_ONE_REWARD.fullmatch(bare_key(key)) is not None
        return places.get("reward" if of_one_reward else bare_key(key), len(places))

    return sorted(keys, key=place_of)
