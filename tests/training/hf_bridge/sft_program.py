"""A TRL or Unsloth training as a person writes it, with the callback, in a process of its own:

    python -m tests.training.hf_bridge.sft_program trl|unsloth MODEL FOLDER

Trains without the callback in FOLDER/undisturbed; with it, killed and started again, in
FOLDER/disturbed. Prints what the callback said and how the three ended.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from infrastructure.training.hf_bridge import TemperCallback
from tests.faults.kill_storm import in_child

TEXTS = [f"Reverse {n}: {str(n)[::-1]}" for n in range(100, 124)]


class KillAt(Observer):
    """Ends the process in a step, as a machine that goes away does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_backward(self, state: TrainingState) -> None:
        if state.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def of_trl(name: str, arguments: dict[str, Any], rows: Any) -> Any:
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    return SFTTrainer(
        AutoModelForCausalLM.from_pretrained(name),
        SFTConfig(max_length=32, **arguments),
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(name),
        peft_config=LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
    )


def of_unsloth(name: str, arguments: dict[str, Any], rows: Any) -> Any:
    from unsloth import FastLanguageModel, UnslothTrainer, UnslothTrainingArguments

    model, tokenizer = FastLanguageModel.from_pretrained(
        name, max_seq_length=32, load_in_4bit=False, dtype=torch.float32
    )
    model = FastLanguageModel.get_peft_model(model, r=4, lora_alpha=8)
    return UnslothTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=rows,
        args=UnslothTrainingArguments(max_length=32, **arguments),
    )


def train(kind: str, name: str, folder: Path, callback: TemperCallback | None) -> None:
    """What a person's script does; the weights that train go to `weights.pt`."""
    from datasets import Dataset
    from transformers import set_seed

    set_seed(3)  # before the LoRA is made
    arguments: dict[str, Any] = {
        "output_dir": str(folder / "of-the-trainer"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 8,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_steps": 2,
        "dataset_num_proc": 1,
        "report_to": "none",
        "use_cpu": True,
        "seed": 3,
    }
    make = of_unsloth if kind == "unsloth" else of_trl
    trainer = make(name, arguments, Dataset.from_dict({"text": TEXTS}))
    resumed = None
    if callback is not None:
        trainer.add_callback(callback)
        resumed = callback.resume_from()
    trainer.train(resume_from_checkpoint=resumed)
    trained = [p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad]
    torch.save(torch.cat(trained), folder / "weights.pt")


def status_of(work: Callable[[], None]) -> int:
    """What became of a fork that does `work`; everything is imported once, by the parent."""
    return os.waitpid(in_child(work), 0)[1]


def main() -> None:
    kind, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if kind == "unsloth":
        import unsloth  # noqa: F401 - before transformers, as it wants to be
    import trl
    from transformers import LlamaForCausalLM  # noqa: F401 - what a child would import

    assert trl.SFTTrainer
    torch.set_num_threads(1)
    plain, disturbed = folder / "undisturbed", folder / "disturbed"
    for one in (plain, disturbed):
        one.mkdir()
    config = DeploymentConfig(
        output_dir=str(disturbed), training={"checkpoint_seconds": None}, monitor={"interval": 0.2}
    )

    def callback(*hooks: Observer) -> TemperCallback:
        return TemperCallback(kind, config, hooks=hooks)

    undisturbed = status_of(lambda: train(kind, name, plain, None))
    killed = status_of(lambda: train(kind, name, disturbed, callback(KillAt(5))))
    done = status_of(lambda: train(kind, name, disturbed, callback()))
    print(json.dumps({"undisturbed": undisturbed, "killed": killed, "done": done}), flush=True)


if __name__ == "__main__":
    main()
