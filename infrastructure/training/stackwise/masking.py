"""Masked diffusion as an objective: which tokens of an example are hidden, and what they count.

A share f(t) of an example's tokens is replaced, and the model, which attends in both directions,
predicts the token at each of these positions. Sources: MDLM (Sahoo et al. 2024, arXiv 2406.07524)
and LLaDA (Nie et al. 2025, arXiv 2502.09992), whose weight 1/t belongs to the linear schedule, in
which a token is masked with probability t. As LLaDA does for fine-tuning, only what is supervised
is hidden: of a plain text everything, of a conversation its answers.

Where masks fall is a pure function of (seed, content of the example, time step, draw). So they are
the same in any batch and in any order, a resumed run has the same ones, and activations of a masked
example can be cached. Nothing here knows a model.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from infrastructure.config import registries
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.core.lookup import look_up
from infrastructure.core.registry import Registry
from infrastructure.training.data.encoding.chat_format import ANSWER, QUESTION, special_tokens
from infrastructure.training.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.training.data.readers.rows import Conversation
from infrastructure.training.data.store.examples import TokenizedExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAST_FRACTION, LARGEST_FRACTION = 0.15, 0.90  # at the first and the last time step
LONGEST_PROBE = 4096  # tokens of a question and an answer as a chat template writes them

Ids = npt.NDArray[np.int32]


class MaskSchedule:
    """The share of tokens that is masked at each time step.

    Args:
        num_time_steps: T; time steps are 0 to T - 1.
        bins: the time steps that are used; None: all.
        fractions: the share, in (0, 1], at some time steps; linear between them, and beyond the
            first and the last one as there. None: from 0.15 at the first time step to 0.90.

    Raises:
        ValueError: a bin or a point is no time step or comes twice, a share is not in (0, 1].
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
        allowed = f"training.num_time_steps = {self.num_time_steps} allows 0 to"
        allowed += f" {self.num_time_steps - 1}"
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
        """f(t), the share of tokens that is masked."""
        return float(np.interp(time_step, self._times, self._shares))


@dataclass(frozen=True)
class MaskVocabulary:
    """The tokens that a corruption may use.

    Attributes:
        mask_token_id: stands for a hidden token.
        ordinary: ids of all tokens that are text, ascending: neither the mask nor control.
    """

    mask_token_id: int
    ordinary: Ids


# Of the ids (k,) at the chosen positions, what stands there instead: ids (k,). Randomness is drawn
# from the given state alone.
Corruption = Callable[[Ids, MaskVocabulary, np.random.RandomState], Ids]


def replace_by_mask(ids: Ids, vocabulary: MaskVocabulary, _random: np.random.RandomState) -> Ids:
    """The absorbing corruption of MDLM and LLaDA: each becomes the mask token."""
    return np.full_like(ids, vocabulary.mask_token_id)


def replace_uniformly(ids: Ids, vocabulary: MaskVocabulary, random: np.random.RandomState) -> Ids:
    """Each becomes another ordinary token, all of them equally likely.

    What is predicted are the replaced tokens alone, so this is a denoising objective and not the
    bound of uniform-state diffusion, which also counts the tokens that were left as they are.
    """
    ordinary = vocabulary.ordinary
    places = np.searchsorted(ordinary, ids)
    inside = np.minimum(places, len(ordinary) - 1)
    is_ordinary = ordinary[inside] == ids
    num_others = len(ordinary) - is_ordinary
    drawn = (random.random_sample(len(ids)) * num_others).astype(np.int64)
    drawn += is_ordinary & (drawn >= places)  # the token itself is left out
    return ordinary[drawn]


CORRUPTIONS: Registry[Corruption] = registries.CORRUPTIONS
CORRUPTIONS.provide({"mask": replace_by_mask, "uniform": replace_uniformly})
WEIGHTINGS = ("inverse", "none")


@dataclass(frozen=True, slots=True, eq=False)
class MaskedExample:
    """An example as the model sees it, and what it is to predict.

    Attributes:
        input_ids: with the masked tokens replaced, int32 (n,).
        positions: of the masked tokens, ascending, int64 (k,).
        targets: the tokens that stood there, int64 (k,).
        time_step: t.
        weight: of the loss of each masked token.
    """

    input_ids: Ids
    positions: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    time_step: int
    weight: float


class MaskedObjective:
    """Predict the masked tokens of an example, each at its own position.

    At time step t exactly max(1, round(f(t) * n)) of the n tokens that may be masked are masked:
    those that are supervised, never padding, never one of `special_token_ids`.

    With `weighting="inverse"` a masked token counts 1/f(t), and the sum is divided by n: this is
    dLLM's MDLM loss with its linear scheduler and `loss_norm_type="token"`, f(t) being their t.
    Averaged over time steps it estimates an upper bound of -log p per token. The share is rounded
    to k whole tokens and the weight is not; n/k, the weight of LLaDA's equation 6, is the same
    where f(t) * n is whole. With "none" a masked token counts 1, and the sum is divided by the
    number of masked tokens.

    Attributes:
        time_step: of every example; None: each example draws its own from the schedule's bins.
        draw: which of an example's masks it is given where it draws its time step, such as the
            number of the optimizer step; with one time step for all there is only the mask 0.

    Args:
        special_token_ids: control tokens, which are never masked.
        corruption: a name in `CORRUPTIONS`.

    Raises:
        ValueError: an unknown corruption or weighting, or a mask token outside the vocabulary.
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

    def mask(self, example: TokenizedExample, *, held_out: bool = False) -> MaskedExample:
        """The example with its masks; a held-out one has always the same ones (draw 0).

        Where nothing may be masked it comes back as it is, with no positions.
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
        """The time step of an example: the one of all, or its own."""
        if self.time_step is not None:
            return self.time_step
        first, second = self._words("time step", example, self._draw(held_out))[:2]
        return self.schedule.bins[(first << 32 | second) % len(self.schedule.bins)]

    def count_masked(self, example: TokenizedExample, *, held_out: bool = False) -> int:
        """Tokens that `mask` will mask."""
        time_step = self.time_step_of(example, held_out=held_out)
        return self._num_masked(len(self._maskable(example)), time_step)

    def count_items(self, example: TokenizedExample, *, held_out: bool = False) -> int:
        """What the example adds to the number that a sum of losses is divided by."""
        if self.weighting == "inverse":
            return len(self._maskable(example))
        return self.count_masked(example, held_out=held_out)

    def _draw(self, held_out: bool) -> int:
        return 0 if held_out or self.time_step is not None else self.draw

    def _maskable(self, example: TokenizedExample) -> npt.NDArray[np.int64]:
        """Positions that may be masked, ascending."""
        may = example.supervised & ~np.isin(example.input_ids, self._special)
        return np.flatnonzero(may)

    def _num_masked(self, num_maskable: int, time_step: int) -> int:
        wanted = max(1, round(self.schedule.fraction(time_step) * num_maskable))
        return min(wanted, num_maskable)

    def _words(self, use: str, example: TokenizedExample, *numbers: int) -> list[int]:
        """Eight 32-bit words that depend on these things alone."""
        content = hashlib.blake2b(digest_size=32, person=use.encode())
        content.update(np.array([self.seed, *numbers], dtype="<i8").tobytes())
        content.update(np.ascontiguousarray(example.input_ids, dtype="<i4").tobytes())
        content.update(np.packbits(example.supervised).tobytes())
        return [int(word) for word in np.frombuffer(content.digest(), dtype="<u4")]


def masked_objective(
    config: TrainingConfig, tokenizer: "PreTrainedTokenizerBase", vocab_size: int
) -> MaskedObjective | None:
    """The objective that a configuration asks for; None without `time_step_masking`.

    Which time step holds for all examples of a phase, the strategy says.

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
) -> MaskedObjective | None:
    """As `masked_objective`, for a model whose tokens are known without a tokenizer."""
    if not config.time_step_masking:
        return None
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
    """The special tokens that no answer holds, such as those that begin a message.

    What ends an answer is no control here, as in LLaDA: a model that never had to predict it would
    not know where to end.
    """
    special = set(special_tokens(tokenizer)) - {tokenizer.eos_token_id}
    encoder = ConversationEncoder(tokenizer, max_length=LONGEST_PROBE)
    [encoded] = encoder.encode([Conversation((QUESTION, ANSWER))])
    if not isinstance(encoded, Encoded):
        return special  # its chat template takes no plain question
    example = encoded.example
    return special - set(example.input_ids[example.supervised].tolist())
