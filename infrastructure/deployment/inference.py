"""The measurement of the fastest way to run inference with the model of a configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import InputError
from infrastructure.deployment.logits import Logits
from infrastructure.deployment.model_repair import repair_model
from infrastructure.evaluation.evaluate import set_aside
from infrastructure.optimization.inference import (
    InferenceResult,
    optimize_inference,
    save_program,
)
from infrastructure.training.trainer_factory import TrainerFactory


@dataclass(frozen=True)
class FastestInference:
    """The result of the measurement.

    Attributes:
        program: the file that was written, or None if none was requested.
        notes: settings that inference does not use.
    """

    result: InferenceResult
    program: Path | None
    notes: list[str]


def find_fastest_inference(
    config: DeploymentConfig, num_rows: int, length: int, program: Path | None = None
) -> FastestInference:
    """Measure every method that this machine supports, on rows of random tokens.

    Args:
        num_rows, length: the size of the input, in rows and tokens.
        program: the file for the fastest program, `.pt2` or `.ts`; None writes no file.

    Raises:
        ValueError: if `length` exceeds the model's context length.
    """
    notes = [f"note: {note}" for note in set_aside(config)]
    repair_model(Path(config.model.name))
    config.data.max_length = 2  # rows are generated here, with any length that the model supports
    trainer = TrainerFactory().for_run(config, "transformers")
    model = Logits(_merged(trainer.initialize_model()))
    _refuse_too_long(model.model, length)
    num_tokens = model.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    tokens = torch.randint(num_tokens, (num_rows, length), device=trainer.device)
    result = optimize_inference(model, (tokens,))
    written = None if program is None else save_program(model, (tokens,), program)
    return FastestInference(result, written, notes)


def _refuse_too_long(model: torch.nn.Module, length: int) -> None:
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and length > positions:
        raise InputError("deployment.length_exceeds_positions", length=length, positions=positions)


def _merged(model: torch.nn.Module) -> torch.nn.Module:
    """Merge LoRA matrices into the weights, unless these are quantized."""
    whole: Any = model
    is_plain = not hasattr(model, "merge_and_unload") or getattr(model, "is_quantized", False)
    return model if is_plain else whole.merge_and_unload()
