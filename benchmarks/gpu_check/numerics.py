"""The same numbers: on CPU and GPU, after going on, in half precision, in four bits."""

from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.bench import Bench, Watched, largest_difference
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.testing.test_pipeline import create_test_pipeline
from infrastructure.training.enhanced_trainer import EnhancedTrainer

Figures = dict[str, Any]
LORA = {"r": 8, "alpha": 32, "dropout": 0.1}  # of the first specification


def self_checks(bench: Bench) -> Figures:
    """The full tier of `temper check` on this machine: none may fail."""
    config = DeploymentConfig(
        model={"name": str(bench.model("tiny"))},
        data={"path": str(bench.rows), "max_length": 512, "num_workers": 0},
        cache={"directory": str(bench.folder / "cache")},
        output_dir=str(bench.folder / "runs"),
        device=bench.device,
    )
    pipeline = create_test_pipeline(config)
    pipeline.run_all_tests()
    results = pipeline.all_results
    failed = {result.name: result.text for result in results if result.status == "fail"}
    return {"passed": not failed, "checks": len(results), "failed": failed}


def cpu_equals_gpu(bench: Bench) -> Figures:
    """fp32 losses of eight steps."""
    bench.require_gpu()
    options: dict[str, Any] = {"mixed_precision": False, "model": {"dtype": "fp32"}}
    on_cpu = bench.losses(device="cpu", **options)
    difference = largest_difference(bench.losses(**options), on_cpu)
    return {"passed": difference < 1e-3, "difference": difference}


def resume_is_exact(bench: Bench) -> Figures:
    """Half-way saved, gone on with in a new trainer: the weights, bit for bit; dropout is on."""
    torch.use_deterministic_algorithms(True)
    options: dict[str, Any] = {"model": {"lora_config": LORA}, "mixed_precision": "bf16"}
    whole = bench.trainer(**options)
    whole.train()
    half = bench.trainer(**options)
    half.save_checkpoints_to(bench.folder / "half")
    half.add_hooks([_StopAt4()])
    half.train()
    rest = restored(bench.trainer(**options), bench.folder / "half")
    rest.train()
    pairs = zip(whole.model.parameters(), rest.model.parameters(), strict=True)
    differing = sum(not torch.equal(a, b) for a, b in pairs)
    return {"passed": differing == 0, "differing_tensors": differing}


def restored(trainer: EnhancedTrainer, checkpoints: Path) -> EnhancedTrainer:
    """The trainer at the newest checkpoint there."""
    trainer.save_checkpoints_to(checkpoints)
    assert trainer.checkpoints is not None
    trainer.restore(trainer.checkpoints.newest())
    return trainer


class _StopAt4(Watched):
    def step_end(self, state: Any) -> None:
        if state.step == 4:
            state.interrupt("half-way")


def fp16_with_scaler(bench: Bench) -> Figures:
    """What a T4 computes in: gradients are scaled, the loss falls as it does in fp32."""
    bench.require_gpu()
    reference = bench.losses(mixed_precision=False, model={"dtype": "fp32"})
    watched = Watched()
    trainer = bench.trainer(watched=watched, mixed_precision="fp16", model={"dtype": "fp32"})
    trainer.train()
    scale = (
        trainer.prepare().loop.optimizer_step.scaler.get_scale()
        if trainer.prepare().loop.optimizer_step.scaler
        else 0.0
    )
    difference = largest_difference(watched.losses, reference)
    return {"passed": difference < 0.02 and scale > 1, "difference": difference, "scale": scale}


def bf16(bench: Bench) -> Figures:
    """Autocast to bf16 beside fp32."""
    reference = bench.losses(mixed_precision=False, model={"dtype": "fp32"})
    losses = bench.losses(mixed_precision="bf16", model={"dtype": "fp32"})
    difference = largest_difference(losses, reference)
    falls = losses[-1] < losses[0]
    return {"passed": falls and difference < 0.02, "difference": difference, "falls": falls}


def qlora_4bit(bench: Bench) -> Figures:
    """The base in four bits by bitsandbytes: it stays as it is, and the loss falls."""
    watched = Watched()
    model = {"quantization": "4bit", "lora_config": LORA}
    trainer = bench.trainer(watched=watched, model=model, max_steps=16)
    trainer.train()
    kinds = {type(module).__name__ for module in trainer.model.modules()}
    falls = watched.losses[-1] < watched.losses[0]
    return {"passed": falls and "Linear4bit" in kinds, "losses": _ends(watched.losses)}


def unsloth(bench: Bench) -> Figures:
    """The same with Unsloth's model and kernels."""
    watched = Watched()
    model = {"backend": "unsloth", "quantization": "4bit", "lora_config": {**LORA, "dropout": 0.0}}
    bench.trainer(watched=watched, model=model, max_steps=16).train()
    return {"passed": watched.losses[-1] < watched.losses[0], "losses": _ends(watched.losses)}


def _ends(losses: list[float]) -> list[float]:
    return [round(losses[0], 4), round(losses[-1], 4)]
