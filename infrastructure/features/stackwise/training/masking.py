"""The objective of masked diffusion: which tokens of an example are masked, and their weights.

A share f(t) of an example's tokens is replaced. The model, which attends in both directions,
predicts the original token at each of these positions. Sources: MDLM (Sahoo et al. 2024, arXiv
2406.07524) and LLaDA (Nie et al. 2025, arXiv 2502.09992). LLaDA's weight 1/t is for a linear
schedule, in which a token is masked with probability t. As in LLaDA's fine-tuning, only supervised
tokens are masked: all tokens of a plain text, the answers of a conversation.

The positions of masks are a pure function of (seed, content of the example, time step, draw). So
they do not depend on batches or their order, a resumed run has the same masks, and activations of a
masked example can be cached. This module does not depend on a model.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.core.lookup import look_up
from infrastructure.core.messages import phrase
from infrastructure.core.registry import Registry
from infrastructure.data.encoding.chat_format import ANSWER, QUESTION, special_tokens
from infrastructure.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.data.readers.rows import Conversation
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.features.stackwise import registries
from infrastructure.features.stackwise.training.bidirectional import check_bidirectional

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAST_FRACTION, LARGEST_FRACTION = 0.15, 0.90  # at the first and the last time step
LONGEST_PROBE = 4096  # tokens of a question and an answer in a chat template

Ids = npt.NDArray[np.int32]


class MaskSchedule:
    """The share of masked tokens at each time step.

    Args:
        num_time_steps: T; time steps are 0 to T - 1.
        bins: the time steps that are used; None: all.
        fractions: the share, in (0, 1], at some time steps. The share is interpolated linearly
            between them, and constant before the first and after the last one. None: from 0.15 at
            the first time step to 0.90 at the last.

    Raises:
        ValueError: there are no bins, a bin or a point is not a time step, a bin occurs twice, or a
            share is not in (0, 1].
    """

    def __init__(
        self,
        num_time_steps: int,
        bins: Sequence[int] | None = None,
        fractions: Mapping[int, float] | None = None,
    ) -> None:
        last = num_time_steps - 1
        default = {0: LEAST_FRACTION, last: LARGEST_FRACTION} if last else {0: LEAST_FRACTION}
        self.num_time_steps = num_time_steps
        self.bins = tuple(range(num_time_steps) if bins is None else bins)
        points = sorted((fractions or default).items())
        self._check(points)
        self._times, self._shares = (list(column) for column in zip(*points, strict=True))

    def _check(self, points: Sequence[tuple[int, float]]) -> None:
        allowed = phrase(
            "stackwise.time_steps_allowed",
            num_time_steps=self.num_time_steps,
            largest=self.num_time_steps - 1,
        )
        if not self.bins:
            raise InputError("stackwise.no_time_step_bins")
        for number in self.bins:
            if not 0 <= number < self.num_time_steps:
                raise InputError(
                    "stackwise.time_step_bin_out_of_range", time_step=number, allowed=allowed
                )
            if self.bins.count(number) > 1:
                raise InputError("stackwise.duplicate_time_step_bin", time_step=number)
        for number, share in points:
            if not 0 <= number < self.num_time_steps:
                raise InputError(
                    "stackwise.mask_time_step_out_of_range", time_step=number, allowed=allowed
                )
            if not 0 < share <= 1:
                raise InputError(
                    "stackwise.mask_fraction_out_of_range", fraction=share, time_step=number
                )

    def fraction(self, time_step: int) -> float:
        """Return f(t), the share of masked tokens."""
        return float(np.interp(time_step, self._times, self._shares))


@dataclass(frozen=True)
class MaskVocabulary:
    """The tokens that can replace masked tokens.

    Attributes:
        mask_token_id: the mask token.
        ordinary: ids of all text tokens, ascending, without the mask and control tokens.
    """

    mask_token_id: int
    ordinary: Ids


# Returns the replacements (k,) of the ids (k,) at the chosen positions. Random numbers come only
# from the given state.
Corruption = Callable[[Ids, MaskVocabulary, np.random.RandomState], Ids]


def replace_by_mask(ids: Ids, vocabulary: MaskVocabulary, _random: np.random.RandomState) -> Ids:
    """Replace each token by the mask token: the absorbing corruption of MDLM and LLaDA."""
    return np.full_like(ids, vocabulary.mask_token_id)


def replace_uniformly(ids: Ids, vocabulary: MaskVocabulary, random: np.random.RandomState) -> Ids:
    """Replace each token by a different ordinary token; all of these are equally likely.

    Only the replaced tokens are predicted. So the objective is a denoising one and not the bound of
    uniform-state diffusion, which also counts the unchanged tokens.
    """
    ordinary = vocabulary.ordinary
    places = np.searchsorted(ordinary, ids)
    inside = np.minimum(places, len(ordinary) - 1)
    is_ordinary = ordinary[inside] == ids
    num_others = len(ordinary) - is_ordinary
    drawn = (random.random_sample(len(ids)) * num_others).astype(np.int64)
    drawn += is_ordinary & (drawn >= places)  # skip the token itself
    return ordinary[drawn]


CORRUPTIONS: Registry[Corruption] = registries.CORRUPTIONS
CORRUPTIONS.provide({"mask": replace_by_mask, "uniform": replace_uniformly})
WEIGHTINGS = ("inverse", "none")


@dataclass(frozen=True, slots=True, eq=False)
class MaskedExample:
    """An example with masked tokens, and its targets.

    Attributes:
        input_ids: with the masked tokens replaced, int32 (n,).
        positions: positions of the masked tokens, ascending, int64 (k,).
        targets: the original tokens at these positions, int64 (k,).
        time_step: t.
        weight: weight of the loss of each masked token.
    """

    input_ids: Ids
    positions: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    time_step: int
    weight: float


class MaskedObjective:
    """The objective of predicting the masked tokens of an example, each at its own position.

    At time step t exactly max(1, round(f(t) * n)) of the n maskable tokens are masked. Maskable
    tokens are supervised, and neither padding nor one of `special_token_ids`.

    With `weighting="inverse"` a masked token counts 1/f(t), and the sum is divided by n. This is
    dLLM's MDLM loss with its linear scheduler and `loss_norm_type="token"`, in which f(t) is called
    t. Averaged over time steps it estimates an upper bound of -log p per token. The share is
    rounded to k whole tokens but the weight is not; n/k, the weight of LLaDA's equation 6, is the
    same if f(t) * n is a whole number. With "none" a masked token counts 1, and the sum is divided
    by the number of masked tokens.

    Attributes:
        time_step: time step of every example; None: each example draws its own time step from
            the schedule's bins.
        draw: the number of the mask draw, such as the number of the optimizer step. It is used only
            if examples draw their time steps; with one time step for all, draw 0 is used.

    Args:
        special_token_ids: control tokens, which are never masked.
        corruption: a name in `CORRUPTIONS`.
        weighting: "inverse" or "none".

    Raises:
        ValueError: the corruption is unknown, or the mask token is outside the vocabulary.
    """

    def __init__(
        self,
        schedule: MaskSchedule,
        seed: int,
        mask_token_id: int,
        vocab_size: int,
        special_token_ids: Collection[int],
        corruption: str = "mask",
        weighting: str = "inverse",
    ) -> None:
        self.schedule, self.seed = schedule, seed
        self.mask_token_id = mask_token_id
        if not 0 <= mask_token_id < vocab_size:
            raise InputError(
                "stackwise.mask_token_not_in_vocabulary",
                mask_token_id=mask_token_id,
                count=vocab_size,
            )
        self.corruption = corruption
        self._corrupt = CORRUPTIONS.get(corruption)
        self.weighting = look_up("mask weighting", weighting, {name: name for name in WEIGHTINGS})
        self._special = np.array(sorted({*special_token_ids, mask_token_id}), dtype=np.int32)
        ordinary = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), self._special)
        self.vocabulary = MaskVocabulary(mask_token_id, ordinary)
        self.time_step: int | None = None
        self.draw = 0

    def check_model(self, model: torch.nn.Module) -> None:
        check_bidirectional(model)

    def mask(self, example: TokenizedExample, *, held_out: bool = False) -> MaskedExample:
        """Mask an example. A held-out example always gets the same masks (draw 0).

        If no token can be masked, the example is returned unchanged, without positions.
        """
        draw = self._draw(held_out)
        time_step = self.time_step_of(example, held_out=held_out)
        maskable = self._maskable(example)
        random = np.random.RandomState(self._words("mask", example, time_step, draw))
        num_masked = self._num_masked(len(maskable), time_step)
        positions = np.sort(random.permutation(maskable)[:num_masked])
        targets = example.input_ids[positions]
        input_ids = example.input_ids.copy()
        input_ids[positions] = self._corrupt(targets, self.vocabulary, random)
        weight = 1.0 / self.schedule.fraction(time_step) if self.weighting == "inverse" else 1.0
        return MaskedExample(input_ids, positions, targets.astype(np.int64), time_step, weight)

    def time_step_of(self, example: TokenizedExample, *, held_out: bool = False) -> int:
        """Return the example's time step: the one set for all examples, or a random one."""
        if self.time_step is not None:
            return self.time_step
        first, second = self._words("time step", example, self._draw(held_out))[:2]
        return self.schedule.bins[(first << 32 | second) % len(self.schedule.bins)]

    def count_masked(self, example: TokenizedExample, *, held_out: bool = False) -> int:
        """Return the number of tokens that `mask` replaces."""
        time_step = self.time_step_of(example, held_out=held_out)
        return self._num_masked(len(self._maskable(example)), time_step)

    def count_items(self, example: TokenizedExample, *, held_out: bool = False) -> int:
        """Return the number by which an example's share of the loss is divided."""
        if self.weighting == "inverse":
            return len(self._maskable(example))
        return self.count_masked(example, held_out=held_out)

    def _draw(self, held_out: bool) -> int:
        return 0 if held_out or self.time_step is not None else self.draw

    def _maskable(self, example: TokenizedExample) -> npt.NDArray[np.int64]:
        """Return the positions of an example that may be masked, ascending."""
        may = example.supervised & ~np.isin(example.input_ids, self._special)
        return np.flatnonzero(may)

    def _num_masked(self, num_maskable: int, time_step: int) -> int:
        wanted = max(1, round(self.schedule.fraction(time_step) * num_maskable))
        return min(wanted, num_maskable)

    def _words(self, use: str, example: TokenizedExample, *numbers: int) -> list[int]:
        """Return eight random 32-bit words that depend only on the seed and these arguments."""
        content = hashlib.blake2b(digest_size=32, person=use.encode())
        content.update(np.array([self.seed, *numbers], dtype="<i8").tobytes())
        content.update(np.ascontiguousarray(example.input_ids, dtype="<i4").tobytes())
        content.update(np.packbits(example.supervised).tobytes())
        return [int(word) for word in np.frombuffer(content.digest(), dtype="<u4")]


def masked_objective(
    config: TrainingConfig, tokenizer: "PreTrainedTokenizerBase", vocab_size: int
) -> MaskedObjective | None:
    """Create the masked objective of a configuration, or return None without `time_step_masking`.

    If a phase has one time step for all examples, the strategy sets it.

    Args:
        vocab_size: number of tokens that both the tokenizer and the model know.

    Raises:
        ValueError: a setting is wrong, or the tokenizer has no mask token.
    """
    if not config.time_step_masking:
        return None
    if tokenizer is None or tokenizer.mask_token_id is None:
        raise InputError("stackwise.masking_without_mask_token")
    return objective_of(config, tokenizer.mask_token_id, vocab_size, control_tokens(tokenizer))


def objective_of(
    config: TrainingConfig,
    mask_token_id: int,
    vocab_size: int,
    special_token_ids: Collection[int],
) -> MaskedObjective:
    """Create the masked objective of a configuration for a model without a tokenizer."""
    schedule = MaskSchedule(
        config.num_time_steps, config.time_step_bins, config.time_step_mask_fractions
    )
    return MaskedObjective(
        schedule,
        config.seed,
        mask_token_id,
        vocab_size,
        special_token_ids,
        config.corruption,
        config.mask_weighting,
    )


def control_tokens(tokenizer: "PreTrainedTokenizerBase") -> set[int]:
    """Return the special tokens that never occur in an answer, such as those that begin a message.

    The token that ends an answer is not included, as in LLaDA: a model that never learned to
    predict it would not know where to end.
    """
    special = set(special_tokens(tokenizer)) - {tokenizer.eos_token_id}
    encoder = ConversationEncoder(tokenizer, max_length=LONGEST_PROBE)
    [encoded] = encoder.encode([Conversation((QUESTION, ANSWER))])
    if not isinstance(encoded, Encoded):
        return special  # its chat template does not support a plain question
    example = encoded.example
    return special - set(example.input_ids[example.supervised].tolist())
