"""What a save costs a GPU, and how fast training is beside TRL's and Unsloth's."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.checkpoint_stall import snapshot_of
from benchmarks.gpu_check.bench import (
    LLAMA_1B_NAME,
    LLAMA_8B_NAME,
    PHI4_NAME,
    TINY_NAME,
    Bench,
    made_on,
)
from benchmarks.gpu_check.numerics import LORA, Figures
from benchmarks.machine import table
from benchmarks.states import GPT2, adam_state, seconds_of, size_bytes
from infrastructure.models.flops import (
    FlopsEstimate,
    arithmetic_of,
    measure_operations_per_second,
)
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer

ROUNDS = 7
MOST_STALL = 1.2  # times a copy into pinned memory
NUM_STEPS, WARMUP_STEPS = 12, 4
SYSTEMS = ("temper", "trl", "unsloth")


def checkpoint_stall(bench: Bench) -> Figures:
    """`begin` beside a copy of the same tensors from the GPU into pinned memory."""
    bench.require_gpu()
    state = {name: tensor.cuda() for name, tensor in adam_state(GPT2).items()}
    pinned = {name: torch.empty_like(t, device="cpu", pin_memory=True) for name, t in state.items()}
    pairs = []
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        manager = CheckpointManager(Path(folder))
        for _ in range(ROUNDS + 1):
            for tensor in state.values():
                tensor.add_(1e-3)
            torch.cuda.synchronize()
            copied = seconds_of(lambda: _copy(state, pinned))
            stalled = seconds_of(lambda: manager.begin(snapshot_of(state)))
            manager.collect(wait=True)
            pairs.append((stalled, copied))
        manager.close()
    ratio = median(stalled / copied for stalled, copied in pairs[1:])
    speed = size_bytes(state) / median(copied for _, copied in pairs[1:]) / 1e9
    figures = {"of_pinned_copy": round(ratio, 2), "pinned_gigabytes_per_second": round(speed, 1)}
    return {"passed": ratio <= MOST_STALL, **figures}


def _copy(state: dict[str, torch.Tensor], pinned: dict[str, torch.Tensor]) -> None:
    for name, tensor in state.items():
        pinned[name].copy_(tensor, non_blocking=True)
    torch.cuda.synchronize()


def monitor_overhead(_bench: Bench) -> Figures:
    """Steps that are watched beside steps that are not; readings of the GPU included."""
    command = [sys.executable, "-m", "benchmarks.monitor_overhead"]
    command += ["--pairs", "6", "--block-seconds", "3", "--samples", "10000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: Figures = next(iter(json.loads(done.stdout).values()))
    return {"passed": not figures["missed"], **figures}


def speed_llama(bench: Bench) -> Figures:
    """4-bit LoRA of a Llama-3.2-1B-shaped model, packed, length 2048."""
    return compare(bench, LLAMA_1B_NAME)


def speed_llama_8b(bench: Bench) -> Figures:
    """The same with the width of a Llama of 8 billion parameters."""
    return compare(bench, LLAMA_8B_NAME)


def speed_phi4(bench: Bench) -> Figures:
    """The same with phi-4's width."""
    return compare(bench, PHI4_NAME)


def compare(bench: Bench, shape: str) -> Figures:
    """Tokens per second and peak memory of the systems, each in a process of its own, and the share
    that this is of what the card's products reach in bf16.

    On a CPU a tiny model shows that all of them run.
    """
    shape = shape if bench.has_gpu else TINY_NAME
    bench.model(shape)
    results = {name: _in_process(bench, name, shape) for name in SYSTEMS}
    most = measure_operations_per_second(torch.device(bench.device), torch.bfloat16)
    arithmetic = lora_arithmetic(shape)
    for figures in results.values():
        if "tokens_per_second" in figures:
            done = arithmetic.per_second(figures["tokens_per_second"], bench.tokens_per_row)
            figures["share_of_peak"] = round(done / most, 3)
    leads = {
        name: round(results["temper"]["tokens_per_second"] / figures["tokens_per_second"], 2)
        for name, figures in results.items()
        if name != "temper" and "tokens_per_second" in figures
    }
    is_slower = bench.has_gpu and any(lead < 1.0 for lead in leads.values())
    return {
        "passed": bool(leads) and not is_slower,
        "model": shape,
        "times_faster_than": leads,
        "peak_teraflops": round(most / 1e12, 1),
        **results,
    }


def lora_arithmetic(shape: str) -> FlopsEstimate:
    """What a LoRA of all linear layers computes for a token: the model's weights have no gradients,
    the small matrices do."""
    model = made_on("meta", shape).requires_grad_(False)
    frozen, head = arithmetic_of(model), model.get_output_embeddings()
    linear = (layer for layer in model.modules() if isinstance(layer, torch.nn.Linear))
    small = sum(
        LORA["r"] * (layer.in_features + layer.out_features)
        for layer in linear
        if layer is not head
    )
    return replace(frozen, per_token=frozen.per_token + 6.0 * small)


def speed_table(checks: Mapping[str, Figures]) -> str:
    """All systems on all models that were compared; "" where none was."""
    rows = [
        (
            figures["model"],
            system,
            f"{of['tokens_per_second']:,}" if "tokens_per_second" in of else of["failed"],
            of.get("peak_gigabytes", "-"),
            f"{of['share_of_peak']:.0%}" if "share_of_peak" in of else "-",
        )
        for figures in checks.values()
        if "peak_teraflops" in figures
        for system in SYSTEMS
        for of in [figures[system]]
    ]
    head = ("model", "system", "tokens/s", "peak memory, GB", "share of the bf16 peak")
    return table(head, rows) if rows else ""


def _in_process(bench: Bench, system: str, shape: str) -> Figures:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--folder", str(bench.folder)]
    command += ["--device", bench.device, "--system", system, "--shape", shape]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["without a word"])[-1][:200]}
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


@dataclass(frozen=True)
class Load:
    """What a step is made of."""

    max_length: int
    rows: int  # of max_length tokens each
    num_steps: int


def measure_system(bench: Bench, system: str, shape: str) -> Figures:
    """Run one of the systems here; each loads the same folder, and trains on the same rows."""
    load = Load(2048, 4, NUM_STEPS) if bench.has_gpu else Load(512, 2, WARMUP_STEPS + 2)
    run = {"temper": _temper, "trl": _trl, "unsloth": _unsloth}[system]
    marks = run(bench, shape, load)
    (first_tokens, first_time), (last_tokens, last_time) = marks[WARMUP_STEPS - 1], marks[-1]
    speed = (last_tokens - first_tokens) / (last_time - first_time)
    peak = torch.cuda.max_memory_allocated() / 1e9 if bench.has_gpu else None
    memory = {} if peak is None else {"peak_gigabytes": round(peak, 2)}
    return {"tokens_per_second": round(speed), **memory}


Marks = list[tuple[int, float]]  # tokens until now, time


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class _Marks(Observer):
    def __init__(self, device: str) -> None:
        self.device, self.marks = device, Marks()

    def step_end(self, state: TrainingState) -> None:
        self.marks.append((state.num_tokens, _now(self.device)))


def _temper(bench: Bench, shape: str, load: Load) -> Marks:
    """As many examples in a step as fill the others' rows."""
    marks = _Marks(bench.device)
    trainer = bench.trainer(
        shape,
        max_length=load.max_length,
        max_steps=load.num_steps,
        batch_size=round(load.rows * load.max_length / bench.tokens_per_row),
        model={"quantization": "4bit", "lora_config": LORA},
    )
    trainer.add_hooks([marks])
    trainer.train()
    return marks.marks


def _trl(bench: Bench, shape: str, load: Load) -> Marks:
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    bits = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    model = AutoModelForCausalLM.from_pretrained(
        bench.model(shape), quantization_config=bits, dtype=torch.bfloat16, device_map=bench.device
    )
    lora = LoraConfig(
        r=LORA["r"],
        lora_alpha=LORA["alpha"],
        lora_dropout=LORA["dropout"],
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return _train_with_trl(bench, shape, load, model, peft_config=lora)


def _unsloth(bench: Bench, shape: str, load: Load) -> Marks:
    from unsloth import FastLanguageModel  # before transformers, as it wants to be

    model, _ = FastLanguageModel.from_pretrained(
        str(bench.model(shape)),
        max_seq_length=load.max_length,
        load_in_4bit=True,
        dtype=torch.bfloat16,
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=LORA["r"],
        lora_alpha=LORA["alpha"],
        lora_dropout=LORA["dropout"],
        use_gradient_checkpointing="unsloth",
    )
    return _train_with_trl(bench, shape, load, model)


def _train_with_trl(bench: Bench, shape: str, load: Load, model: Any, **more: Any) -> Marks:
    from datasets import load_dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    marks, tokens = Marks(), [0]

    class Counting(SFTTrainer):
        def training_step(self, model: Any, inputs: dict[str, Any], *args: Any) -> Any:
            mask = inputs.get("attention_mask", inputs["input_ids"].new_ones(()))
            tokens[0] += int(mask.expand_as(inputs["input_ids"]).sum())
            return super().training_step(model, inputs, *args)

    class Marking(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            marks.append((tokens[0], _now(bench.device)))

    config = SFTConfig(
        output_dir=str(bench.folder / "trl"),
        max_length=load.max_length,
        max_steps=load.num_steps,
        packing=True,
        per_device_train_batch_size=load.rows,
        learning_rate=1e-3,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        bf16=bench.has_gpu,
        use_cpu=not bench.has_gpu,
    )
    dataset = load_dataset("json", data_files=str(bench.rows), split="train")
    tokenizer = AutoTokenizer.from_pretrained(bench.model(shape))
    Counting(
        model=model,
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[Marking()],
        **more,
    ).train()
    return marks
