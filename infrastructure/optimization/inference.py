"""Optimization of a model for inference, with measured latency before and after.

Each method is tried on the given inputs. It must give the same outputs, and is kept if it is faster
than the unchanged model. TorchScript and torch.export give a program that can be saved and used
without this code.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from infrastructure.core.error_place import named
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.optional import is_installed, require

ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE = 1e-3, 1e-2
NUM_TIMED = 10
NUM_WARMUPS = 3


Inputs = tuple[torch.Tensor, ...]


@dataclass
class InferenceResult:
    """The result of the optimization.

    Attributes:
        model: the fastest model that gives the same outputs, or the original if no other is faster.
        method: the method by which it was made; "eager" is the original.
        before_seconds, after_seconds: the median latency of one call.
        seconds_of_method: the latency for each method that worked.
        failures: for each other method, why it did not work.
    """

    model: Callable[..., Any]
    method: str
    before_seconds: float
    after_seconds: float
    seconds_of_method: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def speedup(self) -> float:
        """The latency before divided by the latency after."""
        return self.before_seconds / self.after_seconds


def optimize_inference(
    model: torch.nn.Module,
    inputs: Inputs,
    methods: Sequence[str] | None = None,
) -> InferenceResult:
    """Try every method and keep the fastest. The model is in evaluation mode afterwards.

    Args:
        inputs: the tensors with which the model is called, of typical shapes.
        methods: names in METHODS; by default, all, with TensorRT if it is installed.

    Raises:
        ValueError: if there is no such method.
    """
    chosen = list(methods) if methods is not None else usable_methods()
    if unknown := set(chosen) - METHODS.keys():
        raise InputError(
            "optimization.unknown_inference_methods",
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


def save_program(model: torch.nn.Module, inputs: Inputs, path: Path) -> Path:
    """Write the model as a program that needs none of this code, and read it back.

    Args:
        path: the file, with an extension of PROGRAMS: `.pt2` for torch.export, `.ts` for
            TorchScript. Neither program accepts inputs of another shape than `inputs`.

    Returns:
        The absolute path.

    Raises:
        ValueError: if the model cannot be converted to such a program.
    """
    save, load = PROGRAMS[path.suffix]
    model.eval()
    try:
        save(model, inputs, path)
        with torch.inference_mode():
            _check_equal(load(path)(*inputs), model(*inputs))
    except Exception as error:
        path.unlink(missing_ok=True)
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError("optimization.program_export_failed", path=path, reason=why) from error
    return path.absolute()


def latency_seconds(model: Callable[..., object], inputs: Inputs) -> float:
    """Return the median time of one call after a few warm-up calls."""
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
    """Return the methods whose packages are installed."""
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


def _save_exported(model: torch.nn.Module, inputs: Inputs, path: Path) -> None:
    with torch.no_grad():
        torch.export.save(torch.export.export(model, inputs), path)


def _load_exported(path: Path) -> Callable[..., object]:
    return torch.export.load(path).module()


def _save_scripted(model: torch.nn.Module, inputs: Inputs, path: Path) -> None:
    with torch.no_grad():
        traced: object = torch.jit.trace(model, inputs, strict=False, check_trace=False)
    torch.jit.freeze(traced).save(str(path))


def _load_scripted(path: Path) -> Callable[..., object]:
    program: Callable[..., object] = torch.jit.load(str(path))
    return program


def _scripted(model: torch.nn.Module, inputs: Inputs) -> Callable[..., object]:
    with torch.no_grad():
        traced: object = torch.jit.trace(model, inputs, strict=False, check_trace=False)
    return torch.jit.optimize_for_inference(torch.jit.freeze(traced))


def _tensorrt(model: torch.nn.Module, inputs: Inputs) -> Callable[..., object]:
    tensorrt: Any = require("torch_tensorrt", phrase("optimization.inference_with_tensorrt"))
    made: Callable[..., Any] = tensorrt.compile(model, ir="dynamo", inputs=list(inputs))
    return made


METHODS: dict[str, Callable[[torch.nn.Module, Inputs], Callable[..., object]]] = {
    "compile": _compiled,
    "export": _exported,
    "torchscript": _scripted,
    "tensorrt": _tensorrt,
}

PROGRAMS: dict[str, tuple[Callable[..., None], Callable[[Path], Callable[..., object]]]] = {
    ".pt2": (_save_exported, _load_exported),
    ".ts": (_save_scripted, _load_scripted),
}
