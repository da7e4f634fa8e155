"""The subject of the checks: a trainer with its model and data, and a few examples of the data.

A check receives a `Subject` and leaves the trainer's weights, gradients, random state and modes
unchanged. So the same checks work before training, in the middle of a run, and on request.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from infrastructure.core.integers import ceil_div
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.models.model_inputs import (
    call_model,
    compute_dtype,
    logits_of,
    tolerance,
)
from infrastructure.models.packed_attention import model_arguments
from infrastructure.models.preserve import preserve
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.forward.gradient_accumulation import accumulate_gradients
from infrastructure.training.model_adapters.base_adapter import Batch, HiddenTokens, Objective
from infrastructure.training.strategies.base_strategy import TrainingStrategy
from infrastructure.training.strategies.trial import first_step

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NUM_CANDIDATES = 32
NUM_EXAMPLES = 4
MAX_TOKENS = 512
# Only every n-th element of a large gradient or weight is compared.
MAX_COMPARED = 20_000_000
# For fp16: high enough that gradients do not vanish, low enough that they do not overflow.
GRADIENT_SCALE = 256.0


@dataclass(frozen=True)
class Gradients:
    """The gradients of one batch.

    Attributes:
        values: parameter name → a sample of its gradient's elements, in fp32 on the CPU.
        missing: trainable parameters that got no gradient.
        not_finite: parameters whose gradient contains NaN or infinity.
    """

    values: dict[str, torch.Tensor]
    missing: tuple[str, ...]
    not_finite: tuple[str, ...]


class Subject:
    """A trainer to check, with a few examples of its data.

    Args:
        trainer: the trainer, whose model and data are created if they do not exist yet.
        make_trainer: creates another trainer of the same configuration, with its own model; None:
            checks that need a second trainer are skipped.
    """

    def __init__(
        self,
        trainer: EnhancedTrainer,
        make_trainer: Callable[[], EnhancedTrainer] | None = None,
    ) -> None:
        self.trainer = trainer
        self.make_trainer = make_trainer
        self.model = trainer.initialize_model()
        self.data = trainer.initialize_data()
        self.adapter = trainer.adapter
        self.device = trainer.device

    @property
    def reads_text(self) -> bool:
        """True if this is a language model on tokenized examples."""
        return self.adapter.tokenizer is not None and all(
            isinstance(example, TokenizedExample) for example in self.candidates
        )

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer, for a language model (`reads_text`)."""
        assert self.adapter.tokenizer is not None
        return self.adapter.tokenizer

    @property
    def objective(self) -> Objective | None:
        """The masked objective of this training; None for next-token prediction."""
        return getattr(self.adapter, "objective", None)

    def masked(self, example: TokenizedExample) -> HiddenTokens:
        """Return an example with the tokens hidden that the masked objective hides in this step."""
        assert self.objective is not None
        return self.objective.mask(example, held_out=not self.model.training)

    @property
    def tolerance(self) -> float:
        """The rounding difference allowed between two orders of the same arithmetic, in this
        precision.
        """
        with self.trainer.precision.autocast():
            return tolerance(compute_dtype(self.model))

    @cached_property
    def candidates(self) -> list[Any]:
        """The first training examples, unchanged."""
        with contextlib.closing(self.data.train_batches(0, 0, NUM_CANDIDATES)) as batches:
            return list(next(batches, []))

    @cached_property
    def sample(self) -> list[Any]:
        """A few candidates to compute with: short, of different lengths, few tokens in total."""
        if not self.reads_text:
            return self.candidates[:NUM_EXAMPLES]
        by_length = sorted(self.candidates, key=lambda example: len(example.input_ids))
        spread = np.linspace(0, len(by_length) - 1, NUM_EXAMPLES).astype(int)
        chosen = [by_length[index] for index in dict.fromkeys(spread)]
        return [shortened(example, MAX_TOKENS // NUM_EXAMPLES) for example in chosen]

    @property
    def uneven_sample(self) -> list[Any]:
        """The sample with different numbers of trained tokens, to reveal wrong weighting."""
        if not self.reads_text:
            return self.sample
        return [unsupervised(example, index) for index, example in enumerate(self.sample)]

    def bound_strategy(self) -> TrainingStrategy:
        """Return the training's strategy, set up with what it needs for a step."""
        return self.trainer.bind_strategy()

    def optimizer(self) -> torch.optim.Optimizer:
        """Return a new optimizer, as in training, for the currently trainable parameters."""
        return self.bound_strategy().create_optimizer(self.model, self.trainer.learning_rate)

    def scaler(self) -> torch.amp.GradScaler | None:
        """Return the gradient scaler that fp16 needs; None for other formats."""
        if self.trainer.precision.name != "fp16":
            return None
        return torch.amp.GradScaler(self.device.type, init_scale=GRADIENT_SCALE)

    def loss(self, examples: Sequence[Any]) -> tuple[torch.Tensor, int]:
        """Return the sum of the losses (scalar) and the number of items, as in training."""
        with self.trainer.precision.autocast():
            output = self.adapter.compute_loss(self.model, self.adapter.prepare_batch(examples))
        return output.loss_sum, output.num_items

    def logits(self, batch: Batch) -> torch.Tensor:
        """Return the model's logits for a prepared batch, (B, L, V)."""
        with self.trainer.precision.autocast(), torch.no_grad():
            return logits_of(call_model(self.model, model_arguments(self.model, batch)))

    def logits_by_row(self, examples: Sequence[Any]) -> list[torch.Tensor]:
        """Return the logits of each example of a batch without padding, each of shape (n, V)."""
        batch = self.adapter.prepare_batch(examples)
        logits = self.logits(batch)
        lengths = [len(example.input_ids) for example in examples]
        if "cu_seq_lens" in batch:
            return list(logits[0, : sum(lengths)].split(lengths))
        return [row[:length] for row, length in zip(logits, lengths, strict=True)]

    def gradients(self, examples: Sequence[Any], micro_batch_size: int) -> Gradients:
        """Return the gradients of a batch in micro-batches, computed by the training's own step."""
        strategy, optimizer = self.bound_strategy(), self.optimizer()
        scaler = self.scaler()
        self.model.zero_grad()
        try:
            with first_step(strategy, self.model, optimizer, examples) as strategy:
                accumulate_gradients(
                    self.model,
                    self.adapter,
                    strategy,
                    optimizer,
                    scaler,
                    examples,
                    micro_batch_size=micro_batch_size,
                    total_items=max(1, self.adapter.count_items(examples)),
                )
                strategy.unscale_gradients(optimizer, scaler)
                return self._read_gradients()
        finally:
            self.model.zero_grad()

    def _read_gradients(self) -> Gradients:
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        there = {n: p.grad for n, p in trained.items() if p.grad is not None}
        wrong = [n for n, gradient in there.items() if not bool(gradient.isfinite().all())]
        stride = stride_for(p.numel() for p in trained.values())
        values = {n: kept_values(gradient, stride).float() for n, gradient in there.items()}
        return Gradients(values, tuple(trained.keys() - there.keys()), tuple(wrong))


def stride_for(sizes: Iterator[int] | Sequence[int]) -> int:
    """Return the stride between the elements to compare, which limits their total number."""
    return ceil_div(max(1, sum(sizes)), MAX_COMPARED)


def kept_values(tensor: torch.Tensor, stride: int) -> torch.Tensor:
    """Return a CPU copy of every `stride`-th element of a tensor."""
    return tensor.detach().flatten()[::stride].cpu().clone()


def shortened(example: TokenizedExample, max_length: int) -> TokenizedExample:
    """Return the example cut to the last `max_length` tokens before the end of the trained part.

    An example with images is returned unchanged, because it needs all of its tokens.
    """
    is_short = len(example.input_ids) <= max_length
    if is_short or example.pictures or not example.supervised.any():
        return example
    end = int(np.flatnonzero(example.supervised)[-1]) + 1
    kept = slice(max(0, end - max_length), end)
    mask = example.supervised[kept].copy()
    mask[:1] = False
    return replace(example, input_ids=example.input_ids[kept], supervised=mask)


def unsupervised(example: TokenizedExample, number: int) -> TokenizedExample:
    """Return the example with its first `number` trained tokens masked, but keep at least one."""
    mask = example.supervised.copy()
    learnt = np.flatnonzero(mask)
    mask[learnt[: min(number, len(learnt) - 1)]] = False
    return replace(example, supervised=mask)


@contextlib.contextmanager
def undone(subject: Subject) -> Iterator[None]:
    """Restore the model and the random state after the block, bit for bit, even after an error.

    Trainable parameters and buffers are copied. Frozen weights are not; `fingerprints` detects
    changes to them.
    """
    with preserve_subject(subject), preserve(subject.model, weights=True, buffers=True):
        yield


@contextlib.contextmanager
def preserve_subject(subject: Subject) -> Iterator[None]:
    """Restore modes, random state and gradients after the block; inside, disable compiling."""
    kept = preserve(subject.model, random=subject.device, modes=True, gradients=True)
    with kept, torch.compiler.set_stance("force_eager"):
        yield


def disable_randomness(subject: Subject) -> None:
    """Switch off everything in the model that draws random numbers.

    A language model is put into evaluation mode. Another kind of model may compute something else
    in this mode, so only its dropout is switched off.
    """
    for module in subject.model.modules():
        if subject.reads_text or isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.training = False


def fingerprints(tensors: Iterator[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """Return tensor name → a number that changes if any value of the tensor changes."""
    hashes = {name: torch.hash_tensor(tensor.detach()) for name, tensor in tensors}
    return {name: int(value.view(torch.int64)) for name, value in hashes.items()}
