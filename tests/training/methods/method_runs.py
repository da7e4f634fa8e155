"""Small trainings by each method of TRL, undisturbed and killed, with Temper and without."""

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.registries import METHODS
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.training.hf_bridge.trainer_events import TrainerEvents
from infrastructure.training.methods.method_table import installed_method
from infrastructure.training.methods.trl_training import TrlTraining
from tests.faults.kill_storm import in_child

NUM_ROWS = 26
KINDS = {
    **dict.fromkeys(("dpo", "orpo", "reward", "kto"), "pairs"),
    **dict.fromkeys(("grpo", "rloo", "distillation"), "prompts"),
}


def rows_of(kind: str, num_rows: int = NUM_ROWS) -> list[dict[str, object]]:
    """Sums with a right answer and a wrong one, or with the right one alone."""
    draw = random.Random(0)
    rows: list[dict[str, object]] = []
    for number in range(num_rows):
        a, b = draw.randint(1, 9), number
        prompt, right, wrong = f"{a} + {b} =", f"{a + b}", f"{a + b + draw.randint(1, 4)}"
        row = {"chosen": right, "rejected": wrong} if kind == "pairs" else {"completion": right}
        rows.append({"prompt": prompt, **row})
    return rows


def write_rows(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def configuration(
    method: str, folder: Path, base: Path, teacher: Path | None = None, **more: Any
) -> DeploymentConfig:
    """Of a training of few steps in two epochs and more; saved after every second step."""
    return DeploymentConfig(**settings_of(method, folder, base, teacher, **more))


def settings_of(
    method: str, folder: Path, base: Path, teacher: Path | None = None, **more: Any
) -> dict[str, Any]:
    """As `configuration`, as a file of settings says it."""
    data = write_rows(folder / f"{KINDS[method]}.jsonl", rows_of(KINDS[method]))
    training: dict[str, Any] = {
        "method": method,
        "batch_size": 4,
        "gradient_accumulation": 2,
        "learning_rate": 1e-2,
        "max_steps": 8,
        "warmup_steps": 2,
        "checkpoint_frequency": 2,
        "checkpoint_seconds": None,
        "metrics_sinks": ["jsonl"],
        "mixed_precision": False,
        "seed": 3,
    }
    if method in ("grpo", "rloo"):
        training |= {"num_generations": 4, "rewards": [r"format=.*\d.*"], "beta": 0.05}
    if KINDS[method] == "prompts":
        training |= {"max_completion_length": 8}
    if method == "distillation":
        training |= {"teacher": str(teacher)}
    values: dict[str, Any] = {
        "model": {"name": str(base)},
        "data": {"path": str(data), "max_length": 64},
        "output_dir": str(folder / "runs"),
        "cache": {"directory": str(folder / "cache")},
        "device": "cpu",
        "enable_monitoring": False,
    }
    values["data"] |= more.pop("data", {})
    values["training"] = {**training, **more.pop("training", {})}
    return {**values, **more}


def train(config: DeploymentConfig) -> Any:
    """As the command does; the summary."""
    lines: list[str] = []
    return TrainingDeployment(config, say=lines.append).run()


def run_folder(config: DeploymentConfig) -> Path:
    """Of the only run."""
    [run] = [path.parent for path in Path(config.output_dir).glob("*/run.json")]
    return run


def trained_weights(folder: Path) -> torch.Tensor:
    """Of a saved model or LoRA, in the order of their names."""
    names = ("model.safetensors", "adapter_model.safetensors")
    [file] = [folder / name for name in names if (folder / name).is_file()]
    return torch.cat([tensor.flatten().float() for _, tensor in sorted(load_file(file).items())])


def killed_at(step: int, work: Callable[[], object]) -> int:
    """The status of a process that does `work` and is killed in a step, its gradients there."""

    def until_killed() -> None:
        before = TrainerEvents.gradients_are_final

        def final(events: TrainerEvents) -> None:
            before(events)
            if events.state.step == step:
                os.kill(os.getpid(), signal.SIGKILL)

        TrainerEvents.gradients_are_final = final  # type: ignore[method-assign]
        work()

    import_trl()
    return os.waitpid(in_child(until_killed), 0)[1]


def in_fork(work: Callable[[], object]) -> int:
    import_trl()
    return os.waitpid(in_child(lambda: [work(), None][1]), 0)[1]


def train_plainly(config: DeploymentConfig, folder: Path, kill_at: int | None = None) -> None:
    """The same trainer of TRL by itself, which saves after every second step and goes on with
    `resume_from_checkpoint=True`; its model goes to `folder/final`."""
    from transformers import TrainerCallback
    from transformers.trainer_utils import SaveStrategy

    class Kill(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = TrlTraining(config, folder).make_trainer(is_new=False)
    rhythm = [c for c in trainer.callback_handler.callbacks if "Rhythm" in type(c).__name__]
    for callback in rhythm:
        trainer.remove_callback(callback)
    trainer.args.save_strategy, trainer.args.save_steps = SaveStrategy.STEPS, 2
    trainer.add_callback(Kill())
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")) or None)
    trainer.model.save_pretrained(folder / "final")


def methods_here() -> list[str]:
    """Those that the installed TRL has; Colab's lacks distillation."""
    return [name for name in METHODS.built_in if _is_here(name)]


def _is_here(name: str) -> bool:
    try:
        installed_method(name)
    except ValueError:
        return False
    return True


def import_trl() -> None:
    """What a child would import."""
    import datasets  # noqa: F401
    from transformers import LlamaForCausalLM, LlamaForSequenceClassification  # noqa: F401

    for name in methods_here():
        installed_method(name).classes()
    torch.set_num_threads(1)


def begin_anew(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
