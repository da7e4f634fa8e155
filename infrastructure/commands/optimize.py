"""What `temper optimize` does: the fastest way to answer with a model, by measurement."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.hardware import processor
from infrastructure.deployment.model_repair import repair_model
from infrastructure.deployment.signals import interrupt_on_signals
from infrastructure.evaluation.evaluate import set_aside
from infrastructure.monitoring.drawing.tables import render_table
from infrastructure.optimization.inference import (
    PROGRAMS,
    InferenceResult,
    optimize_inference,
    save_program,
)
from infrastructure.training.trainer_factory import TrainerFactory

DONE = 0


@dataclass(frozen=True)
class Wish:
    """What is to be measured.

    Attributes:
        num_rows, length: the shape of the inputs, in rows and tokens.
        file: where the model is written as a program, `.pt2` or `.ts`; None: nowhere.
        as_json: print one JSON object, nothing else.
    """

    num_rows: int = 1
    length: int = 128
    file: Path | None = None
    as_json: bool = False

    def __post_init__(self) -> None:
        for name, value in (("--rows", self.num_rows), ("--length", self.length)):
            if value < 1:
                raise ValueError(f"{name} {value}: give a whole number of at least 1")
        if self.file is not None and self.file.exists():
            raise ValueError(f"{self.file} is there already: name another file")
        if self.file is not None and self.file.suffix not in PROGRAMS:
            endings = ", ".join(PROGRAMS)
            raise ValueError(f"{self.file}: name a file with one of the endings {endings}")


class Logits(torch.nn.Module):
    """A language model as programs for other consumers take it: tokens to logits, no cache.

    Shapes: (batch, length) of int64 → (batch, length, vocabulary).
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        output: Any = self.model(input_ids=input_ids, use_cache=False)
        logits: torch.Tensor = output.logits
        return logits


def optimize(config: DeploymentConfig, wish: Wish) -> int:
    """Measure every way that this machine has, show the table, save what is asked for."""
    notes = set_aside(config)
    repair_model(Path(config.model.name))
    config.data.max_length = 2  # rows are made here, of any length that the model has positions for
    trainer = TrainerFactory().for_run(config)
    with interrupt_on_signals():
        model = Logits(_merged(trainer.initialize_model()))
        _refuse_too_long(model.model, wish.length)
        num_tokens = model.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        tokens = torch.randint(num_tokens, (wish.num_rows, wish.length), device=trainer.device)
        result = optimize_inference(model, (tokens,))
        saved = save_program(model, (tokens,), wish.file) if wish.file is not None else None
    if wish.as_json:
        print(json.dumps(_facts(config, wish, result, saved)))
        return DONE
    for line in [*notes, *_lines(config, wish, result)]:
        print(line)
    if saved is not None:
        print(f"written: {saved}")
    return DONE


def _refuse_too_long(model: torch.nn.Module, length: int) -> None:
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and length > positions:
        raise ValueError(f"--length {length} is more than the {positions} positions of the model")


def _merged(model: torch.nn.Module) -> torch.nn.Module:
    """LoRA matrices in the weights, where these are numbers that can be added to."""
    whole: Any = model
    is_plain = not hasattr(model, "merge_and_unload") or getattr(model, "is_quantized", False)
    return model if is_plain else whole.merge_and_unload()


def _lines(config: DeploymentConfig, wish: Wish, result: InferenceResult) -> list[str]:
    seconds = {"as it is": result.before_seconds, **result.seconds_of_method}
    rows = [
        [name, f"{1000 * took:.2f} ms", f"{result.before_seconds / took:.2f} x"]
        for name, took in seconds.items()
    ]
    title = f"{config.model.name}, {wish.num_rows} x {wish.length} tokens"
    refused = [f"{name} is not possible: {why}" for name, why in result.failures.items()]
    best = "as it is" if result.method == "eager" else result.method
    verdict = f"fastest with the same answers: {best} ({result.speedup:.2f} x)"
    return [render_table([title, "latency", "speed"], rows), *refused, verdict]


def _facts(
    config: DeploymentConfig, wish: Wish, result: InferenceResult, saved: Path | None
) -> dict[str, Any]:
    return {
        "model": config.model.name,
        "num_rows": wish.num_rows,
        "length": wish.length,
        "processor": processor().model,
        "method": result.method,
        "before_seconds": result.before_seconds,
        "after_seconds": result.after_seconds,
        "seconds_of_method": result.seconds_of_method,
        "failures": result.failures,
        "saved": None if saved is None else str(saved),
    }
