"""Training speed on a CPU of TRL, of a plain hand-written loop and of Temper, in one sitting.

    python -m benchmarks.throughput --data gsm8k/train.jsonl

All train the same 12.7 M-parameter Llama (vocabulary 8192, from scratch, 8 examples or 2 packed
rows a step, AdamW, clipping at 1) on the same token ids with the same label masks: Temper's data
pipeline makes them once for all. The systems take turns, one step each, so that a busy machine is
busy for all of them; a lead is the median over the steps of the ratios of neighbouring steps. The
first step, which loads the model too, is not counted.

Tokens per second count real tokens, never padding. Prints one JSON line; progress to stderr. TRL's
defaults are bf16 (emulated, where the processor has no such instructions: "trl_fp32" is without
that handicap) and gradient checkpointing; both loops of "crude" have neither checkpointing nor
TRL's logging.
"""

import argparse
import contextlib
import json
import logging
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.turns import Clock, take_turns
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.optimization.gpu_capability import cpu_has_bf16
from infrastructure.training.core.precision import choose_precision
from infrastructure.training.core.state import TrainingState
from infrastructure.training.data.data_pipeline import DataPipeline
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.models.packing_check import pack_rows, prepare_packing
from infrastructure.training.models.token_loss import TokenLoss

NUM_ROWS = 640
VOCAB_SIZE = 8192
MAX_LENGTH = 512
WARMUP_STEPS = 1
BATCH_SIZE = 8  # examples
LEARNING_RATE = 1e-3
# 12.71 million parameters: 2 x 8192 x 384 in embedding and head, 1.6 million in each layer.
MODEL: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 384,
    "intermediate_size": 880,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": MAX_LENGTH,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
Row = dict[str, list[int]]  # input_ids; labels, -100 where nothing is learnt
LABELS = {"all": "all tokens", "answers": "answers only"}


@dataclass
class Workbench:
    """What every system is given: the saved model, the rows, and the same rows as token ids."""

    folder: Path
    examples: dict[str, list[Row]] = field(default_factory=dict)

    @property
    def rows(self) -> Path:
        return self.folder / "rows.jsonl"

    @property
    def cache(self) -> CacheConfig:
        return CacheConfig(directory=str(self.folder / "cache"))

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    def create_model(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.model_folder, dtype=torch.float32).train()


System = Callable[[Workbench, str, int, Clock], None]


def prepare(data: Path, folder: Path) -> Workbench:
    """Rows, a tokenizer trained on them, a new model, and the examples for both label masks."""
    rows = [json.loads(line) for line in data.read_text().splitlines()[:NUM_ROWS]]
    workbench = Workbench(folder)
    workbench.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = train_tokenizer([f"{row['question']}\n{row['answer']}" for row in rows])
    save_model(workbench.model_folder, tokenizer)
    for train_on in LABELS:
        pipeline = DataPipeline(
            data_config(workbench, train_on), tokenizer, cache_config=workbench.cache
        )
        pipeline.prepare()
        workbench.examples[train_on] = [
            to_row(example)
            for batch in pipeline.train_batches(epoch=0, start_example=0, batch_size=BATCH_SIZE)
            for example in batch
        ]
    return workbench


def train_tokenizer(texts: list[str]) -> Any:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts, VOCAB_SIZE, special_tokens=["<pad>", "<eos>"], show_progress=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, pad_token="<pad>", eos_token="<eos>"
    )


def save_model(folder: Path, tokenizer: Any) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**MODEL)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def data_config(workbench: Workbench, train_on: Any) -> DataConfig:
    return DataConfig(
        path=str(workbench.rows),
        train_on=train_on,
        validation_split=0.0,
        max_length=MAX_LENGTH,
        num_workers=0,
    )


def to_row(tokenized: Any) -> Row:
    labels = np.where(tokenized.supervised, tokenized.input_ids, -100)
    return {"input_ids": tokenized.input_ids.tolist(), "labels": labels.tolist()}


@dataclass
class StepClock(Observer):
    """Marks the clock after each of Temper's steps."""

    clock: Clock

    def step_end(self, state: TrainingState) -> None:
        self.clock.num_tokens = state.num_tokens
        self.clock.mark()


def temper(compile_mode: Literal["default"] | None = None) -> System:
    """Temper as a user calls it: packing, and the precision that the device has."""

    def run(workbench: Workbench, train_on: str, num_steps: int, clock: Clock) -> None:
        trainer = EnhancedTrainer(
            ModelConfig(name=str(workbench.model_folder)),
            TrainingConfig(
                max_steps=num_steps,
                batch_size=BATCH_SIZE,
                learning_rate=LEARNING_RATE,
                compile_mode=compile_mode,
            ),
            data_config(workbench, train_on),
            device="cpu",
            cache_config=workbench.cache,
            hooks=[StepClock(clock)],
        )
        trainer.train()

    return run


def crude(precision: str) -> System:
    """What one writes in an afternoon: packed rows, explicit 4-D mask, all logits, plain AdamW."""

    def run(workbench: Workbench, train_on: str, num_steps: int, clock: Clock) -> None:
        model = workbench.create_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        for step in range(num_steps):
            examples = workbench.examples[train_on][step * BATCH_SIZE :][:BATCH_SIZE]
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = crude_loss(model, examples)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            clock.num_tokens += sum(len(example["input_ids"]) for example in examples)
            clock.mark()

    return run


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


def trl(**options: Any) -> System:
    """TRL's SFTTrainer with its own defaults but for the given options."""

    def run(workbench: Workbench, train_on: str, num_steps: int, clock: Clock) -> None:
        trl_trainer(workbench, train_on, clock, {**options, "max_steps": num_steps}).train()

    return run


def trl_trainer(workbench: Workbench, train_on: str, clock: Clock, options: dict[str, Any]) -> Any:
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
        max_length=MAX_LENGTH,
        learning_rate=LEARNING_RATE,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
        **options,
    )
    return CountingTrainer(
        model=workbench.create_model(),
        args=config,
        train_dataset=Dataset.from_list(workbench.examples[train_on]),
        processing_class=AutoTokenizer.from_pretrained(workbench.model_folder),
        callbacks=[Marking()],
    )


PACKED = {"packing": True, "per_device_train_batch_size": 2}  # two rows of MAX_LENGTH
SYSTEMS: dict[str, dict[str, System]] = {
    "all": {
        "temper": temper(),
        "crude_fp32": crude("fp32"),
        "crude_bf16": crude("bf16"),
        "trl_defaults": trl(),
        "trl_fp32": trl(bf16=False),
        "trl_packing": trl(**PACKED),
        "trl_packing_fp32": trl(**PACKED, bf16=False),
    },
    "answers": {"temper": temper(), "trl_defaults": trl(), "trl_fp32": trl(bf16=False)},
}


def compare(
    workbench: Workbench, train_on: str, systems: dict[str, System], num_steps: int
) -> dict[str, Clock]:
    ready = {name: partial(s, workbench, train_on, num_steps) for name, s in systems.items()}
    return take_turns(ready, num_steps, LABELS[train_on])


def summarise(clocks: dict[str, Clock]) -> dict[str, Any]:
    """Medians over the steps of the speeds, and of Temper's lead over each of the others."""
    speeds = {name: clock.speeds[WARMUP_STEPS:] for name, clock in clocks.items()}
    leads = {
        name: median([ours / other for ours, other in zip(speeds["temper"], others, strict=True)])
        for name, others in speeds.items()
        if name != "temper"
    }
    return {
        "tokens_per_second": {name: round(median(speed)) for name, speed in speeds.items()},
        "temper_times_faster_than": {name: round(lead, 2) for name, lead in leads.items()},
    }


def loss_difference(workbench: Workbench) -> float:
    """Relative difference of the loss of one batch, Temper's and the plain loop's: same maths."""
    examples = workbench.examples["answers"][:BATCH_SIZE]
    model = workbench.create_model()
    with torch.no_grad():
        expected = crude_loss(model, examples)
        prepare_packing(model)
        batch = pack_rows([torch.tensor(row["input_ids"]) for row in examples])
        batch["labels"] = torch.cat([torch.tensor(row["labels"]) for row in examples])[None]
        loss_sum, num_items = TokenLoss()(model, batch)
    return abs(float(loss_sum) / num_items / float(expected) - 1.0)


def measure_compiled(workbench: Workbench, num_steps: int) -> dict[str, Any]:
    """What torch.compile gives once it is done (second half), and what it takes until then."""
    systems = {"temper": temper(), "compiled": temper("default")}
    clocks = compare(workbench, "all", systems, num_steps)
    half = num_steps // 2
    speeds = {name: median(clock.speeds[half:]) for name, clock in clocks.items()}
    lost = sum(clocks["compiled"].seconds[:half]) - sum(clocks["temper"].seconds[:half])
    saved_per_token = 1 / speeds["temper"] - 1 / speeds["compiled"]
    return {
        "tokens_per_second": {name: round(speed) for name, speed in speeds.items()},
        "seconds_lost_at_first": round(lost, 1),
        "tokens_to_pay_back": round(lost / saved_per_token) if saved_per_token > 0 else None,
    }


def be_quiet() -> None:
    """Leave stdout to the result, and stderr to the speeds."""
    import datasets
    import transformers

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


def environment() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processors = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    versions = {package: version(package) for package in ("torch", "transformers", "trl")}
    return {
        "processor": processors[0] if processors else platform.machine(),
        "num_threads": torch.get_num_threads(),
        "bf16_instructions": cpu_has_bf16(),
        "temper_precision": choose_precision(True, torch.device("cpu")).name,
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **versions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="GSM8K's train.jsonl")
    parser.add_argument("--quick", action="store_true", help="two steps each, not six")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    arguments = parser.parse_args()
    num_steps = WARMUP_STEPS + (2 if arguments.quick else 6)
    be_quiet()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        workbench = prepare(arguments.data, Path(folder))
        result: dict[str, Any] = {"benchmark": "throughput", "steps": num_steps}
        result["loss_difference"] = loss_difference(workbench)
        for train_on, label in LABELS.items():
            result[label] = summarise(compare(workbench, train_on, SYSTEMS[train_on], num_steps))
        if arguments.compile:
            result["temper compiled"] = measure_compiled(workbench, 2 * num_steps)
        result["environment"] = environment()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
