"""Dry runs: real steps on real rows, for measurements that leave the run unchanged.

Weights, buffers and random state are the same afterwards. Gradients are discarded, and the
optimizer is a separate one with a learning rate of zero. So a dry run does not change the result of
the run.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from infrastructure.models.preserve import preserve
from infrastructure.optimization.device_errors import free_memory
from infrastructure.optimization.peak_memory import peak_memory
from infrastructure.training.forward.one_step import one_step
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.strategies.base_strategy import TrainingStrategy


@dataclass(frozen=True)
class MicroCost:
    """The cost of the forward and backward pass of one micro-batch.

    Attributes:
        num_tokens: number of tokens as the adapter counts them, without padding.
        peak_bytes: peak memory during the pass.
    """

    num_tokens: int
    seconds: float
    peak_bytes: int


@dataclass
class DryRunStep:
    """A measurement of the parts of an optimizer step. Use it inside `dry_run`.

    Attributes:
        optimizer: a separate optimizer, because the measurement performs steps with it.
        accumulates: True if gradients accumulate over micro-batches, so they take memory.
    """

    model: torch.nn.Module
    adapter: ModelAdapter
    strategy: TrainingStrategy
    optimizer: torch.optim.Optimizer
    accumulates: bool = False

    @property
    def is_half_precision(self) -> bool:
        """True if matrix products are computed in bf16 or fp16."""
        return self.strategy.precision.name != "fp32"

    def micro_batch(self, examples: Sequence[object]) -> MicroCost:
        """Run a forward and a backward pass as in training, and return their cost."""
        device = self.adapter.device
        if not self.accumulates:
            self.optimizer.zero_grad()
        with peak_memory(device) as peak:
            started = _now(device)
            one_step(self.model, self.adapter, self.strategy, self.optimizer, examples)
            seconds = _now(device) - started
            return MicroCost(self.adapter.count_tokens(examples), seconds, peak.read())

    def update(self) -> float:
        """Return the measured seconds of gradient clipping and of the optimizer's step.

        The first call allocates the optimizer's state. The weights do not change, because gradients
        and learning rates are zero.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.zero_()
        started = _now(self.adapter.device)
        self.strategy.update_parameters(self.model, self.optimizer, None, None)
        return _now(self.adapter.device) - started

    @torch.no_grad()
    def evaluation(self, examples: Sequence[object]) -> MicroCost:
        """Compute the held-out loss of one batch, and return the cost."""
        device = self.adapter.device
        self.optimizer.zero_grad()
        self.model.eval()
        with peak_memory(device) as peak:
            started = _now(device)
            batch = self.adapter.prepare_batch(examples)
            with self.strategy.precision.autocast():
                self.adapter.compute_loss(self.model, batch)
            seconds = _now(device) - started
            cost = MicroCost(self.adapter.count_tokens(examples), seconds, peak.read())
        self.model.train()
        return cost


@contextmanager
def dry_run(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Put the model into training mode without gradients, and restore its state on exit.

    Unused memory is released on exit. Weights are not restored, so the caller must not change them.
    """
    try:
        with preserve(model, random=device, modes=True, gradients=True, buffers=True):
            model.train()
            yield
    finally:
        free_memory(device)


def _now(device: torch.device) -> float:
    """Return the current time, after waiting for the device to finish its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
