"""Optimization of a model for inference, with the latency measured before and after.

Each method runs on the given inputs. The fastest one is used if its outputs are the same, up to a
tolerance, and it is faster than the unchanged model.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.error_place import named
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import is_installed, require
from infrastructure.deployment.export import Logits
from infrastructure.deployment.model_repair import repair_model
from infrastructure.evaluation.evaluate import set_aside
from infrastructure.training.trainer_factory import TrainerFactory

ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE = 1e-3, 1e-2
NUM_TIMED = 10
NUM_WARMUPS = 3


Inputs = tuple[torch.Tensor, ...]


@dataclass
class InferenceResult:
    """The result of `optimize_inference`.

    Attributes:
        model: the fastest model with the same outputs, or the original if no other is faster.
        method: the method that created `model`; "eager" means the original model.
        before_seconds, after_seconds: the median latency of one call.
        seconds_of_method: the latency for each method that worked.
        failures: the error message of each method that failed.
    """

    model: Callable[..., Any]
    method: str
    before_seconds: float
    after_seconds: float
    seconds_of_method: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def speedup(self) -> float:
        """The latency before the optimization divided by the latency after it."""
        return self.before_seconds / self.after_seconds


def find_fastest_inference(
    config: DeploymentConfig, num_rows: int, length: int
) -> tuple[InferenceResult, list[str]]:
    """Try every inference method on the model of a configuration, with rows of random tokens.

    Args:
        num_rows, length: the size of the input, in rows and tokens.

    Returns:
        The result, and notes on settings that inference does not use.

    Raises:
        ValueError: if `length` exceeds the model's context length.
    """
    notes = [f"note: {note}" for note in set_aside(config)]
    repair_model(Path(config.model.name))
    config.data.max_length = 2  # rows are generated here, with any length that the model supports
    trainer = TrainerFactory().for_run(config, "transformers")
    model = Logits(_merged(trainer.initialize_model()))
    positions = getattr(model.model.config, "max_position_embeddings", None)
    if positions is not None and length > positions:
        raise InputError("inference.length_exceeds_positions", length=length, positions=positions)
    num_tokens = model.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    tokens = torch.randint(num_tokens, (num_rows, length), device=trainer.device)
    return optimize_inference(model, (tokens,)), notes


def _merged(model: torch.nn.Module) -> torch.nn.Module:
    """Merge the LoRA weights into the model, unless its weights are quantized."""
    whole: Any = model
    is_plain = not hasattr(model, "merge_and_unload") or getattr(model, "is_quantized", False)
    return model if is_plain else whole.merge_and_unload()


def optimize_inference(
    model: torch.nn.Module,
    inputs: Inputs,
    methods: Sequence[str] | None = None,
) -> InferenceResult:
    """Try inference methods and return the fastest. The model is in evaluation mode afterwards.

    Args:
        inputs: the tensors with which the model is called, of typical shapes.
        methods: names in METHODS; None: all whose packages are installed.

    Raises:
        ValueError: if a method is unknown.
    """
    chosen = list(methods) if methods is not None else usable_methods()
    if unknown := set(chosen) - METHODS.keys():
        raise InputError(
            "inference.unknown_methods",
            unknown=sorted(unknown),
            methods=", ".join(METHODS),
        )
    model.eval()
    with torch.inference_mode():
        expected = model(*inputs)
    before = latency_seconds(model, inputs)
    result = InferenceResult(model, "eager", before, before)
    for method in chosen:
        try:
            made = METHODS[method](model, inputs)
            with torch.inference_mode():
                _check_equal(made(*inputs), expected)
            seconds = latency_seconds(made, inputs)
        except Exception as error:  # a converter's failure on this model is not an error here
            result.failures[method] = named(error)
            continue
        result.seconds_of_method[method] = seconds
        if seconds < result.after_seconds:
            result.model, result.method, result.after_seconds = made, method, seconds
    return result


def latency_seconds(model: Callable[..., object], inputs: Inputs) -> float:
    """Measure the median time of one call, after a few warm-up calls."""
    on_gpu = any(tensor.is_cuda for tensor in inputs)

    def call() -> float:
        started = time.perf_counter()
        with torch.inference_mode():
            model(*inputs)
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    for _ in range(NUM_WARMUPS):
        call()
    return median(call() for _ in range(NUM_TIMED))


def usable_methods() -> list[str]:
    """Return the inference methods whose packages are installed."""
    return [name for name in METHODS if name != "tensorrt" or is_installed("torch_tensorrt")]


def _check_equal(actual: object, expected: object) -> None:
    for ours, theirs in zip(_tensors(actual), _tensors(expected), strict=True):
        torch.testing.assert_close(
            ours, theirs, atol=ABSOLUTE_TOLERANCE, rtol=RELATIVE_TOLERANCE, check_dtype=False
        )


def _tensors(output: Any) -> list[torch.Tensor]:
    values = output.values() if isinstance(output, dict) else output
    leaves = tree_leaves(tuple(values) if isinstance(output, dict) else values)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _compiled(model: torch.nn.Module, _inputs: Inputs) -> Callable[..., object]:
    compiled: Callable[..., object] = torch.compile(model)
    return compiled


def _exported(model: torch.nn.Module, inputs: Inputs) -> Callable[..., object]:
    with torch.no_grad():
        return torch.export.export(model, inputs).module()


def _scripted(model: torch.nn.Module, inputs: Inputs) -> Callable[..., object]:
    with torch.no_grad():
        traced: object = torch.jit.trace(model, inputs, strict=False, check_trace=False)
    return torch.jit.optimize_for_inference(torch.jit.freeze(traced))


def _tensorrt(model: torch.nn.Module, inputs: Inputs) -> Callable[..., object]:
    tensorrt: Any = require("torch_tensorrt", phrase("inference.inference_with_tensorrt"))
    made: Callable[..., Any] = tensorrt.compile(model, ir="dynamo", inputs=list(inputs))
    return made


METHODS: dict[str, Callable[[torch.nn.Module, Inputs], Callable[..., object]]] = {
    "compile": _compiled,
    "export": _exported,
    "torchscript": _scripted,
    "tensorrt": _tensorrt,
}
