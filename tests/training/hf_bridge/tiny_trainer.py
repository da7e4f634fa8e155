"""A small real Trainer with TemperCallback: of GPT-2 or of a LoRA on it, in 12 steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import CopyNotConfirmedError
from infrastructure.training.hf_bridge import TemperCallback

NUM_ROWS = 22
LENGTH = 10


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Fixed random sequences of different rows."""

    def __init__(self, num_rows: int = NUM_ROWS, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, 60, (num_rows, LENGTH), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index].clone()}


def tiny_model(dropout: float = 0.1) -> Any:
    """A GPT-2 of two thin layers with dropout, so that each step draws random numbers, and with
    its output layer tied to its embeddings."""
    from transformers import GPT2Config, GPT2LMHeadModel, set_seed

    set_seed(0)
    sizes = {"vocab_size": 60, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    drop = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **drop, **special))


def tiny_lora() -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=2,
        lora_dropout=0.1,
        target_modules=["c_attn"],
        fan_in_fan_out=True,
        modules_to_save=["ln_f"],
        task_type="CAUSAL_LM",
    )
    return get_peft_model(tiny_model(), config)


def arguments(folder: Path, **options: Any) -> Any:
    from transformers import TrainingArguments

    values: dict[str, Any] = {
        "output_dir": str(folder / "of-the-trainer"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "lr_scheduler_type": "cosine",
        "logging_steps": 1,
        "save_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 1,
    }
    return TrainingArguments(**{**values, **options})


def trainer_of(folder: Path, model: Any = None, **options: Any) -> Any:
    from transformers import Trainer
    from transformers.trainer_callback import PrinterCallback

    model = tiny_model() if model is None else model
    held_out = Rows(4, seed=9)
    trainer = Trainer(
        model, arguments(folder, **options), train_dataset=Rows(), eval_dataset=held_out
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def settings(folder: Path, **more: Any) -> DeploymentConfig:
    """Saves where the Trainer would, and never by time."""
    training = {"checkpoint_seconds": None, "metrics_sinks": ["jsonl"], **more.pop("training", {})}
    values: dict[str, Any] = {"output_dir": str(folder / "runs"), "enable_monitoring": False}
    return DeploymentConfig(**{**values, "training": training, **more})


def weights(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def train(
    folder: Path, model: Any = None, config: DeploymentConfig | None = None, **options: Any
) -> tuple[Any, TemperCallback, list[str]]:
    """The three lines of the documentation; the Trainer, the callback, and what was said."""
    lines: list[str] = []
    callback_options = {k: options.pop(k) for k in ("accept", "hooks") if k in options}
    trainer = trainer_of(folder, model, **options)
    callback = TemperCallback(
        "tiny", config or settings(folder), say=lines.append, **callback_options
    )
    trainer.add_callback(callback)
    with stop_passes():
        trainer.train(resume_from_checkpoint=callback.resume_from())
    return trainer, callback, lines


@contextmanager
def stop_passes() -> Iterator[None]:
    """Continue after a stop, which ends a person's script."""
    try:
        yield
    except KeyboardInterrupt:
        return
    except SystemExit as end:
        if isinstance(end, CopyNotConfirmedError):
            raise
