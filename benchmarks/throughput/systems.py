"""What is compared: Temper as a user calls it, what one writes by hand, and TRL.

All train the same model on the same token ids with the same labels, by AdamW and with clipping at
1. TRL's defaults are bf16 (emulated, where the processor has no such instructions: "trl_fp32" is
without that handicap) and gradient checkpointing; the loops of "crude" have neither checkpointing
nor TRL's logging.
"""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F

from benchmarks.throughput.workbench import (
    PACKED_LENGTH,
    Row,
    Scenario,
    Workbench,
    peft_config,
)
from benchmarks.turns import Clock
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.core.state import TrainingState
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Hook, Observer
from infrastructure.training.setup.compute_choice import choose_by_product, choose_by_trial

LEARNING_RATE = 1e-3
USUAL_STEPS = 2800  # three epochs of GSM8K, eight examples a step
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class System(Protocol):
    """What is compared."""

    @property
    def precision(self) -> str:
        """The format of its products."""

    def train(self, workbench: Workbench, num_steps: int, clock: Clock) -> None:
        """Train for so many steps, and mark the clock after each."""


def train(system: System, workbench: Workbench, num_steps: int, clock: Clock) -> None:
    """The program of a system's process."""
    be_quiet()
    system.train(workbench, num_steps, clock)


def be_quiet() -> None:
    """Leave stderr to the speeds."""
    import datasets
    import transformers

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


@dataclass
class StepClock(Observer):
    """Marks the clock after each of Temper's steps."""

    clock: Clock

    def step_end(self, state: TrainingState) -> None:
        self.clock.num_tokens = state.num_tokens
        self.clock.mark()


@dataclass(frozen=True)
class Temper:
    """As a user has it: packing, and what a run of usual length has measured on this machine.

    Attributes:
        num_threads: of PyTorch.
    """

    precision: str
    num_threads: int
    compile_mode: Literal["default"] | None = None

    def trainer(self, workbench: Workbench, num_steps: int, hooks: list[Hook]) -> EnhancedTrainer:
        trainer = temper_trainer(workbench, num_steps, hooks, self.compile_mode)
        trainer.use_precision(self.precision)
        torch.set_num_threads(self.num_threads)
        return trainer

    def train(self, workbench: Workbench, num_steps: int, clock: Clock) -> None:
        self.trainer(workbench, num_steps, [StepClock(clock)]).train()


def temper_trainer(
    workbench: Workbench,
    num_steps: int,
    hooks: list[Hook],
    compile_mode: Literal["default"] | None = None,
) -> EnhancedTrainer:
    return EnhancedTrainer(
        workbench.model_config,
        TrainingConfig(
            max_steps=num_steps,
            num_epochs=num_steps,  # the rows are few: they never end it
            batch_size=workbench.scenario.batch_size,
            learning_rate=LEARNING_RATE,
            compile_mode=compile_mode,
        ),
        workbench.data_config,
        device="cpu",
        cache_config=workbench.cache,
        hooks=hooks,
    )


def measured_temper(workbench: Workbench) -> Temper:
    """Temper as it computes on this machine; this process goes on with as many threads."""
    trainer = temper_trainer(workbench, USUAL_STEPS, [])
    choose_by_product(trainer)
    choose_by_trial(trainer)
    return Temper(trainer.precision.name, torch.get_num_threads())


@dataclass(frozen=True)
class Crude:
    """What one writes in an afternoon: packed rows, explicit 4-D mask, all logits, plain AdamW."""

    precision: str

    def train(self, workbench: Workbench, num_steps: int, clock: Clock) -> None:
        model = workbench.create_model(DTYPES[self.precision])
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)
        for step in range(num_steps):
            examples = workbench.batch(step)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
                loss = crude_loss(model, examples)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            clock.num_tokens += sum(len(example["input_ids"]) for example in examples)
            clock.mark()


def crude_loss(model: Any, examples: list[Row]) -> torch.Tensor:
    """Mean cross-entropy over the supervised tokens of the examples in one row."""
    lengths = [len(example["input_ids"]) for example in examples]
    ids, labels = (
        torch.cat([torch.tensor(example[name]) for example in examples])
        for name in ("input_ids", "labels")
    )
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])
    causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    mask = (segment[:, None] == segment) & causal
    logits = model(
        input_ids=ids[None], attention_mask=mask[None, None], position_ids=positions[None]
    ).logits
    return F.cross_entropy(logits[0, :-1].float(), labels[1:])


@dataclass(frozen=True)
class Trl:
    """TRL's SFTTrainer with its own defaults but for the format and the given options."""

    precision: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def train(self, workbench: Workbench, num_steps: int, clock: Clock) -> None:
        given = {
            "per_device_train_batch_size": workbench.scenario.batch_size,
            "max_length": workbench.scenario.max_length,
            "bf16": self.precision == "bf16",
            **self.options,
            "max_steps": num_steps,
        }
        trl_trainer(workbench, DTYPES[self.precision], clock, given).train()


def trl_trainer(
    workbench: Workbench, dtype: torch.dtype, clock: Clock, options: dict[str, Any]
) -> Any:
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    class CountingTrainer(SFTTrainer):
        def training_step(self, model: Any, inputs: dict[str, Any], *args: Any) -> Any:
            mask = inputs.get("attention_mask", inputs["input_ids"].new_ones(()))
            clock.num_tokens += int(mask.expand_as(inputs["input_ids"]).sum())
            return super().training_step(model, inputs, *args)

    class Marking(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.mark()

    config = SFTConfig(
        output_dir=str(workbench.folder / "trl"),
        learning_rate=LEARNING_RATE,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
        **options,
    )
    lora = workbench.scenario.lora
    return CountingTrainer(
        model=workbench.create_base(dtype),
        args=config,
        train_dataset=Dataset.from_list(workbench.examples),
        processing_class=AutoTokenizer.from_pretrained(workbench.model_folder),
        callbacks=[Marking()],
        peft_config=None if lora is None else peft_config(lora),
    )


# Two rows hold about as many tokens as a step of the others.
PACKED = {"packing": True, "per_device_train_batch_size": 2, "max_length": PACKED_LENGTH}
COMMON: dict[str, System] = {
    "crude_fp32": Crude("fp32"),
    "crude_bf16": Crude("bf16"),
    "trl_defaults": Trl("bf16"),
    "trl_fp32": Trl("fp32"),
}
PACKING: dict[str, System] = {
    "trl_packing": Trl("bf16", PACKED),
    "trl_packing_fp32": Trl("fp32", PACKED),
}


def systems_of(scenario: Scenario, has_bf16: bool, temper: Temper) -> dict[str, System]:
    """Those that are compared in a scenario. With bf16 instructions one scenario shows what the
    others are in fp32, too, and all do where Temper has measured that fp32 is faster; without them
    nobody trains in bf16, where a step takes far longer.

    Args:
        has_bf16: whether the processor has such instructions.
    """
    others = {**COMMON, **PACKING} if scenario.packs else COMMON
    shows_fp32 = scenario.shows_fp32 or temper.precision == "fp32"
    shown = {"bf16", *(["fp32"] if shows_fp32 else [])} if has_bf16 else {"fp32"}
    kept = {name: system for name, system in others.items() if system.precision in shown}
    return {"temper": temper, **kept}
