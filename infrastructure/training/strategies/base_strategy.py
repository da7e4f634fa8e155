"""The base class of training strategies: phases, optimizer, and the step of one micro-batch.

A new strategy implements `train_step` and, if it trains different parameters at different times,
`phases`. It never imports an adapter: the trainer passes it `compute_loss`.
"""

import inspect
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.config import registries
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.core.errors import InputError
from infrastructure.core.optional import require
from infrastructure.core.registry import Registry
from infrastructure.models.added_modules import is_added
from infrastructure.models.trainable_state import whole
from infrastructure.optimization.offloaded_adamw import OffloadedAdamW
from infrastructure.training.core.precision import Precision
from infrastructure.training.core.state import Phase, StepOutput
from infrastructure.training.strategies.run_parts import ExampleSource, RunParts

# Optimizers and learning-rate schedules, by name.
#
# An optimizer can be added as a class like `torch.optim.Adamax`, or a function like it, by an entry
# point in the group "temper.optimizers" or its address, `training.optimizer: torch.optim:Adamax`.
# It is called with parameter groups and `lr`, and with `betas` if it takes them. A schedule is a
# function that maps the completed share of the training (0 to 1, without warm-up) to a factor of
# the learning rate.

ParameterGroups = list[dict[str, Any]]
BETAS = (0.9, 0.95)  # of AdamW, and of each other optimizer that takes them
OPTIMIZERS: Registry[Callable[..., torch.optim.Optimizer]] = registries.OPTIMIZERS
SCHEDULERS: Registry[Callable[[float], float]] = registries.SCHEDULERS


def build_optimizer(
    name: str, groups: ParameterGroups, learning_rate: float
) -> torch.optim.Optimizer:
    """Create the optimizer with a name or address.

    Raises:
        ValueError: there is no such optimizer, or it cannot be created with these arguments.
    """
    takes_betas = "betas" in inspect.signature(OPTIMIZERS.get(name)).parameters
    options: dict[str, Any] = {"betas": BETAS} if takes_betas else {}
    made: torch.optim.Optimizer = OPTIMIZERS.make(name, groups, lr=learning_rate, **options)
    return made


def _from_bitsandbytes(class_name: str) -> Callable[..., torch.optim.Optimizer]:
    """Return a function that creates an 8-bit or paged optimizer.

    8-bit moments take a quarter of the memory. Paged moments move to CPU memory when the GPU's
    memory is full. On a CPU, paging has no effect.
    """

    def build(
        groups: ParameterGroups, lr: float, betas: tuple[float, float]
    ) -> torch.optim.Optimizer:
        optim: object = require("bitsandbytes", f"optimizer {class_name}").optim
        on_cpu = groups[0]["params"][0].device.type == "cpu"
        build_one = getattr(optim, class_name.removeprefix("Paged") if on_cpu else class_name)
        optimizer: torch.optim.Optimizer = build_one(groups, lr=lr, betas=betas)
        return optimizer

    return build


OPTIMIZERS.provide(
    {
        # fused: one pass over the parameters instead of a dozen; available on CPU and CUDA
        "adamw": partial(torch.optim.AdamW, fused=True),
        "adamw_8bit": _from_bitsandbytes("AdamW8bit"),
        "paged_adamw": _from_bitsandbytes("PagedAdamW32bit"),
        "paged_adamw_8bit": _from_bitsandbytes("PagedAdamW8bit"),
        "adamw_offload": OffloadedAdamW,
        "sgd": torch.optim.SGD,
    }
)
SCHEDULERS.provide(
    {
        "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
        "linear": lambda done: 1.0 - done,
        "constant": lambda _done: 1.0,
    }
)


class HasLossSum(Protocol):
    """A loss as the sum over items, and the number of items."""

    loss_sum: torch.Tensor
    num_items: int


NOT_ENTERED = -1  # no phase yet


class HasDraw(Protocol):
    """The settings of an objective that hides tokens, as far as a strategy changes them."""

    time_step: int | None
    draw: int


LossFunction = Callable[[torch.nn.Module, dict[str, object]], HasLossSum]


def _without_loss(_model: torch.nn.Module, _batch: dict[str, object]) -> HasLossSum:
    raise InputError("training.strategy_without_loss")


class TrainingStrategy(ABC):
    """Base class of all training strategies.

    Attributes:
        chosen_by: the value of `training.strategy` to assume if an instance is passed to a trainer
            with `auto`; None: the value stays.
        config: the training section of the configuration.
        compute_loss: `(model, batch) -> (loss_sum, num_items)`, set by the trainer. Until then, it
            raises ValueError.
        precision: the precision of the forward pass, set by the trainer.
        entered: the phase that the model's layers are prepared for. -1: none yet.
        steps_per_epoch: optimizer steps per epoch, set by the trainer.
        added_rate: peak learning rate of weights that extensions have added, set by the trainer.
            None: the same as for other weights.
        objective: hides tokens of the examples, set by the trainer. None: no tokens are hidden.
        source: the source of examples, set by the trainer, if the strategy stores a value for each
            of them. None: the strategy stores no such values.
        has_forms: True if the model's layers (dtypes, added weights) change from phase to
            phase.
    """

    has_forms: ClassVar[bool] = False
    chosen_by: ClassVar[str | None] = None
    config: TrainingConfig
    logger: logging.Logger
    compute_loss: LossFunction
    precision: Precision
    entered: int
    steps_per_epoch: int
    added_rate: float | None
    objective: HasDraw | None
    source: ExampleSource | None

    def __init__(self, config: TrainingConfig, logger: logging.Logger | None = None) -> None:
        self.config = config
        self.logger = logger or logging.getLogger(__name__)
        self.compute_loss = _without_loss
        self.precision = Precision("fp32", "cpu")
        self.entered = NOT_ENTERED
        self.steps_per_epoch = 0
        self.added_rate = None
        self.objective = None
        self.source = None

    @abstractmethod
    def train_step(
        self,
        model: torch.nn.Module,
        batch: dict[str, Any],
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
        scheduler: LambdaLR | None,
        update_gradients: bool = True,
    ) -> StepOutput:
        """Run forward and backward passes of one micro-batch; optionally step the optimizer.

        `batch["total_items"]`, if given, is the number of supervised items in the whole optimizer
        batch. The loss is divided by that number, so that splitting a batch changes nothing. The
        loop always passes `update_gradients=False` and calls `unscale_gradients` and
        `update_parameters` itself, so that hooks see the final gradients in between.
        """

    def extensions(self, trainer: Any) -> list[Any]:
        """Return the extensions that this strategy needs, which are called after all others."""
        return []

    def phases(self, model: torch.nn.Module, num_epochs: int) -> list[Phase]:
        """Return the phases of the training, in order; their epochs add up to `num_epochs`."""
        return [Phase(num_epochs=num_epochs)]

    def prepare_model(self, model: torch.nn.Module) -> None:  # noqa: B027 (most need nothing)
        """Inspect the model once, before its optimizer is created.

        Raises:
            ValueError: this strategy cannot train the model.
        """

    def enter_phase(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int
    ) -> None:
        """Begin or resume phase `index`; called before the event PHASE_START."""
        self.take_form(model, optimizer, index)

    def notes(self) -> list[str]:
        """Return notes about the loaded model, to show at the start of a run."""
        return []

    def run_parts(self, trainer: Any) -> RunParts:
        """Return an object for everything that the strategy adds to a run besides its steps, such
        as files.
        """
        return RunParts()

    def check_length(self, total_steps: int) -> None:  # noqa: B027 (most can end at any step)
        """Check the total number of optimizer steps.

        Raises:
            ValueError: after so many steps the model would be only partly trained.
        """

    def begin_step(self, step: int, examples: Sequence[object]) -> None:
        """Prepare for optimizer step `step` (from 0); called before its batch is prepared."""
        if self.objective is not None:
            self.objective.draw = step

    def take_form(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, index: int
    ) -> None:
        """Convert the model's layers to the form of phase `index` (-1: the form before the first
        phase).

        The form means dtypes, modes, and the optimizer's parameters. The values of the
        weights stay, or are loaded from a checkpoint afterwards.
        """
        self.entered = index

    def close(self, is_over: bool) -> None:  # noqa: B027 (most hold nothing)
        """Handle the end of training.

        Args:
            is_over: all steps are done; otherwise the run may be resumed.
        """

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the form in which it is evaluated in this
        phase.
        """
        return nullcontext()

    def measuring(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Return a context for measuring costs, in which untrained parameters need no gradient."""
        return nullcontext()

    def parameter_groups(self, model: torch.nn.Module, learning_rate: float) -> ParameterGroups:
        """Return parameter groups: matrices with weight decay, and vectors (norms, biases)
        without.
        """
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        return decay_groups(named, learning_rate, self.config.weight_decay)

    def create_optimizer(
        self, model: torch.nn.Module, learning_rate: float
    ) -> torch.optim.Optimizer:
        """Create the configured optimizer over `parameter_groups`.

        `optimization.optimizer_memory` calls this with samples of the parameters to predict the
        optimizer's memory, so implementations must read nothing of the model except
        `model.named_parameters()`.

        Raises:
            ValueError: nothing in the model can be trained.
        """
        groups = [g for g in self.parameter_groups(model, learning_rate) if g["params"]]
        groups = self._with_rate_of_added(model, groups)
        if not groups:
            raise InputError("training.no_trainable_parameters")
        return build_optimizer(self.config.optimizer, groups, learning_rate)

    def _with_rate_of_added(
        self, model: torch.nn.Module, groups: ParameterGroups
    ) -> ParameterGroups:
        """Move weights that extensions have added to parameter groups with their own
        learning rate.
        """
        added = {id(p) for name, p in model.named_parameters() if is_added(name)}
        split: list[ParameterGroups] = [[], []]
        for group in groups:
            for is_own in (False, True):
                chosen = [p for p in group["params"] if (id(p) in added) == is_own]
                rate = {"lr": self.added_rate} if is_own and self.added_rate is not None else {}
                if chosen:
                    split[is_own].append({**group, "params": chosen, **rate})
        return [*split[False], *split[True]]

    def create_scheduler(self, optimizer: torch.optim.Optimizer, total_steps: int) -> LambdaLR:
        """Create a scheduler with linear warm-up, followed by the schedule `scheduler_type`."""
        return LambdaLR(optimizer, self.rate_factor(total_steps))

    def rate_factor(self, total_steps: int) -> Callable[[int], float]:
        """Return a function from a step to its learning-rate factor, for `total_steps` steps."""
        shape = SCHEDULERS.get(self.config.scheduler_type)
        warmup_steps = self.config.warmup_within(total_steps)

        def factor(step: int) -> float:
            if step < warmup_steps:
                return (step + 1) / (warmup_steps + 1)
            return shape(min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps)))

        return factor

    def unscale_gradients(
        self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None
    ) -> None:
        """Unscale the accumulated gradients, which are scaled only in fp16."""
        if scaler is not None:
            scaler.unscale_(optimizer)

    def update_parameters(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
        scheduler: LambdaLR | None,
    ) -> torch.Tensor:
        """Clip gradients, step the optimizer, advance the schedule, and clear the gradients.

        Returns:
            The norm of the gradients before clipping, a scalar tensor (reading it synchronizes).
        """
        with_gradient = [p for p in model.parameters() if p.grad is not None]
        max_norm = self.config.max_grad_norm or math.inf
        grad_norm = torch.nn.utils.clip_grad_norm_(with_gradient, max_norm, foreach=True)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        return whole(grad_norm.detach())


def decay_groups(
    named: Iterable[tuple[str, torch.nn.Parameter]], learning_rate: float, weight_decay: float
) -> ParameterGroups:
    """Return two groups with the same learning rate: matrices with weight decay, and vectors
    without.
    """
    parameters = [parameter for _, parameter in named]
    matrices = [p for p in parameters if p.ndim >= 2]
    vectors = [p for p in parameters if p.ndim < 2]
    return [
        {"params": matrices, "lr": learning_rate, "weight_decay": weight_decay},
        {"params": vectors, "lr": learning_rate, "weight_decay": 0.0},
    ]
