"""What block-wise training takes of memory, beside training all layers at once, on one model.

    python -m benchmarks.stackwise_memory [--divisor 4] [--only full --only "24 blocks, bf16"]

The model has the 24 layers and the proportions of Qwen2.5-0.5B; widths and vocabulary are divided
by `--divisor` (see `stackwise_model`). Each training is a process of its own, and all of them have
the same batches. Two numbers of each: `tensor_bytes`, the most that tensors took at once (weights,
gradients, optimizer, activations, embeddings included), counted storage by storage; and
`process_bytes`, the kernel's peak of the process, less what the same process took after a training
of a model of almost nothing. `against_full` is each divided by the lower one of the two trainings
of all layers.

`states` are the bytes of weights, gradients and optimizer in the phase that holds most: of the
layers, beside 2 M + 16 M / D (BAdam, 2404.02827: bf16 weights; in the block that trains fp32
gradients, masters and two moments; M weights in D blocks), and of all else.

Then the bytes of linear weights when they are quantised, and what that costs of the held-out loss
of a small model which learnt the embedded tasks. Prints one JSON line.
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.stackwise_model import PUBLISHED, Shape, save_model, trainer_of
from benchmarks.tensor_peak import TensorPeak
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.process_memory import resident_bytes, trim_heap
from infrastructure.features.stackwise.training.quantized_trunk import (
    QuantizedWeight,
    dequantize_layers,
    quantize_layers,
)
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.optimization.peak_memory import PeakMemory
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.trainer_factory import TrainerFactory

NUM_LAYERS = PUBLISHED["Qwen2.5-0.5B"]["num_hidden_layers"]
FULL = ("full", "full, fp32 throughout")
MOST_AGAINST_FULL, MOST_OFF_FORMULA = 0.4, 0.1
LEAST_SMALLER = {"nf_fp8": 3.8}
TINY = Shape(divisor=8, num_layers=2, length=16, batch_size=1)


def arms(num_layers: int = NUM_LAYERS) -> dict[str, tuple[dict[str, Any], str]]:
    """The trainings: settings, and the format that the weights are loaded in."""
    trainings: dict[str, tuple[dict[str, Any], str]] = {
        FULL[0]: ({"strategy": "standard", "mixed_precision": "bf16"}, "fp32"),
        FULL[1]: ({"strategy": "standard", "mixed_precision": False}, "fp32"),
    }
    blocks = {
        "mode": "blockwise",
        "mixed_precision": "bf16",
        "progressive": {"new_stack_precision": "full"},
    }
    for size, dtype, cached in (
        (1, "bf16", False),
        (1, "bf16", True),
        (2, "bf16", False),
        (1, "fp32", False),
    ):
        name = f"{num_layers // size} blocks, {dtype}{', cached' * cached}"
        trainings[name] = ({**blocks, "block_size": size, "cache_activations": cached}, dtype)
    return trainings


class States(Observer):
    """Bytes of weights, gradients and optimizer, of the layers and of all else, by step."""

    name = "states"

    def __init__(self) -> None:
        self.of_layers: set[int] = set()  # of the weights; given once there is a model
        self.seen: list[dict[str, int]] = []

    def after_backward(self, state: TrainingState) -> None:
        assert state.optimizer is not None
        sizes = dict.fromkeys(("layers", "layers_frozen", "others", "others_frozen"), 0)
        for parameter in state.model.parameters():
            kept = state.optimizer.state.get(parameter, {}).values()
            tensors = [parameter, *([] if parameter.grad is None else [parameter.grad])]
            tensors += [value for value in kept if isinstance(value, torch.Tensor)]
            place = "layers" if id(parameter) in self.of_layers else "others"
            size = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
            sizes[place] += size
            if not parameter.requires_grad:
                sizes[f"{place}_frozen"] += size
        self.seen.append(sizes)

    def most(self) -> dict[str, int]:
        """Of the step that held most of the layers'."""
        return max(self.seen, key=lambda one: one["layers"])


def measure(name: str, shape: Shape) -> dict[str, Any]:
    """One training, in this process."""
    settings, dtype = arms(shape.num_layers or NUM_LAYERS)[name]
    with tempfile.TemporaryDirectory() as folder:
        tiny, real = Path(folder, "tiny"), Path(folder, "model")
        save_model(tiny, TINY)
        save_model(real, shape)
        trainer_of(tiny, TINY, settings, dtype).train()  # what is loaded at the first use
        trim_heap()
        peak, bare = PeakMemory(torch.device("cpu")), resident_bytes()
        peak.start()
        states, counter = States(), TensorPeak()
        trainer = trainer_of(real, shape, settings, dtype, hooks=[states])
        trainer.prepare()
        model = trainer.initialize_model()
        layers = Rack(model).layers
        states.of_layers = {id(p) for p in layers.parameters()}
        counter.count([*model.parameters(), *model.buffers()], "weights")
        with counter:
            state = trainer.train()
        process = peak.read() - bare
    num_weights = sum(p.numel() for p in model.parameters())
    of_layers = sum(p.numel() for p in layers.parameters())
    return {
        "name": name,
        "steps": state.step,
        "tensor_bytes": counter.highest,
        "process_bytes": process,
        "weights_of_layers": of_layers,
        "other_weights": num_weights - of_layers,
        "states": states.most(),
        "most_of_others": max(one["others"] for one in states.seen),
        "at_peak": dict(counter.at_peak.most_common(6)),
    }


def in_own_process(name: str, divisor: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.stackwise_memory", "--one", name]
    done = subprocess.run(
        [*command, "--divisor", str(divisor)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compared(measurements: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each beside the trainings of all layers, and beside the formula."""
    rows = []
    for one in measurements:
        row = dict(one)
        full = [other for other in measurements if other["name"] in FULL]
        if one["name"] not in FULL:
            for kind in ("tensor_bytes", "process_bytes") if full else ():
                row[f"{kind}_against_full"] = round(one[kind] / min(f[kind] for f in full), 3)
            num_blocks, size = int(one["name"].split()[0]), one["weights_of_layers"]
            formula = 2 * size + 16 * size / num_blocks
            row["against_formula"] = round(one["states"]["layers"] / formula, 3)
        rows.append(row)
    return rows


def stored_bytes(module: torch.nn.Module) -> int:
    """Of the weights of linear layers, quantised or not."""
    parts = list(module.modules())
    quantized = [part for part in parts if isinstance(part, QuantizedWeight)]
    stored = sum(buffer.nbytes for part in quantized for buffer in part.buffers())
    return stored + sum(part.weight.nbytes for part in parts if type(part) is torch.nn.Linear)


def quantised(shape: Shape, steps: int) -> dict[str, Any]:
    """How many times fewer bytes linear weights of the model take than in fp32; and the held-out
    loss of a small model."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), shape)
        model = trainer_of(Path(folder), shape, {}).initialize_model()
        whole = stored_bytes(model)
        for kind in LEAST_SMALLER:
            layer = copy.deepcopy(Rack(model).layers[0])
            plain = stored_bytes(layer)
            quantize_layers(layer, kind)
            figures[kind] = {"times_smaller": round(plain / stored_bytes(layer), 3)}
    figures["fp32"] = {"bytes": whole}
    with tempfile.TemporaryDirectory() as folder:
        config = DeploymentConfig(
            model={"embedded": {"intermediate_size": 384}},
            training={
                **{"strategy": "standard", "max_steps": steps, "validation_interval": None},
                **{"learning_rate": 3e-3, "mixed_precision": False, "validation_prompts": 0},
            },
            data={"num_workers": 0},
            cache={"directory": folder},
            device="cpu",
        )
        trainer = TrainerFactory().for_run(config)
        trainer.train()
        model = trainer.initialize_model()
        layers = Rack(model).layers
        learnt = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        figures["fp32"]["loss"] = trainer.evaluate()["eval_loss"]
        for kind in LEAST_SMALLER:
            quantize_layers(layers, kind)
            figures[kind]["loss"] = trainer.evaluate()["eval_loss"]
            dequantize_layers(layers, torch.float32)
            model.load_state_dict(learnt)
    return figures


def missed_goals(rows: Sequence[dict[str, Any]], stored: dict[str, Any]) -> list[str]:
    """Which numbers are not as good as they were to be."""
    kinds = ("tensor_bytes", "process_bytes")
    missed = [
        f"{row['name']}: {kind}"
        for row in rows
        for kind in kinds
        if row.get(f"{kind}_against_full", 0) > MOST_AGAINST_FULL
    ]
    missed += [
        f"{row['name']}: formula"
        for row in rows
        if "bf16" in row["name"] and abs(row.get("against_formula", 1) - 1) > MOST_OFF_FORMULA
    ]
    for kind, least in LEAST_SMALLER.items():
        if kind in stored and stored[kind]["times_smaller"] < least:
            missed.append(f"{kind}: bytes")
    return missed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--divisor", type=int, default=4, help="of widths and vocabulary")
    parser.add_argument("--only", action="append", choices=list(arms()))
    parser.add_argument("--steps", type=int, default=600, help="of the small model")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    shape = Shape(divisor=options.divisor)
    if options.one:
        print(json.dumps(measure(options.one, shape)))
        return 0
    results = []
    for name in options.only or arms():
        results.append(in_own_process(name, options.divisor))
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    rows = compared(results)
    stored = quantised(Shape(num_layers=1), options.steps)
    missed = missed_goals(rows, stored)
    summary = {"benchmark": "stackwise_memory", "divisor": options.divisor, "rows": rows}
    print(json.dumps({**summary, "quantised": stored, "missed": len(missed), "which": missed}))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
