"""Trainers as people write them, tiny: what they keep besides the weights is uneven on purpose."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.training.hf_bridge import TemperCallback
from tests.training.hf_bridge.tiny_trainer import Rows, arguments, tiny_lora, tiny_model

NAME = "own"
SAVED = "saved"  # what the script itself saves at its end
# What a clock decides.
TIMED = ("runtime", "per_second", "step_time")
QUIET = {
    "per_device_train_batch_size": 2,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "seed": 3,
    "logging_steps": 3,
    "learning_rate": 0.1,
}


class UnevenRows(Rows):
    """Rows of different lengths."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(index)
        return {name: ids[: 4 + index % 6] for name, ids in row.items()}


def padded(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch of rows of different lengths."""
    ids = [row["input_ids"] for row in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(ids, batch_first=True),
        "labels": pad(ids, batch_first=True, padding_value=-100),
    }


def smoothed_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    """A loss of one's own."""
    logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    total = torch.nn.functional.cross_entropy(
        logits, targets, reduction="sum", ignore_index=-100, label_smoothing=0.1
    )
    return total / (num_items_in_batch or (targets != -100).sum())


def hits(predicted: Any) -> dict[str, float]:
    """A metric of one's own: more is better."""
    guesses, labels = predicted.predictions[:, :-1], predicted.label_ids[:, 1:]
    counted = labels != -100
    return {"hits": float((guesses == labels)[counted].mean())}


def best_guesses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.argmax(dim=-1)


def early(folder: Path) -> Any:
    """Early stopping, the best of two evaluation sets, and accumulation that does not divide."""
    from transformers import EarlyStoppingCallback, Trainer

    args = arguments(
        folder,
        num_train_epochs=9,
        gradient_accumulation_steps=3,
        learning_rate=3e-2,
        lr_scheduler_type="constant",
        logging_steps=3,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_b_loss",
    )
    return Trainer(
        tiny_model(),
        args,
        train_dataset=Rows(23),
        eval_dataset={"a": Rows(3, seed=8), "b": Rows(4, seed=0)},
        callbacks=[EarlyStoppingCallback(3)],
    )


def plateau(folder: Path) -> Any:
    """An optimizer, a schedule, a loss and a metric of one's own, and rows grouped by length."""
    from transformers import EarlyStoppingCallback, Trainer

    model = tiny_model()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 1e-2}]
    optimizer = torch.optim.RMSprop(groups, lr=2e-2, momentum=0.7)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.4, patience=0)
    args = arguments(
        folder,
        num_train_epochs=5,
        gradient_accumulation_steps=1,
        train_sampling_strategy="group_by_length",
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        load_best_model_at_end=True,
        metric_for_best_model="hits",
        greater_is_better=True,
    )
    return Trainer(
        model,
        args,
        data_collator=padded,
        train_dataset=UnevenRows(9),
        eval_dataset=UnevenRows(5, seed=2),
        compute_metrics=hits,
        compute_loss_func=smoothed_loss,
        preprocess_logits_for_metrics=best_guesses,
        optimizers=(optimizer, schedule),
        callbacks=[EarlyStoppingCallback(3)],
    )


def adapter(folder: Path) -> Any:
    """The best LoRA by held-out loss; saved more often than it is logged."""
    from transformers import Trainer

    args = arguments(
        folder,
        num_train_epochs=3,
        gradient_accumulation_steps=2,
        logging_steps=4,
        learning_rate=0.3,
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        save_total_limit=1,
        load_best_model_at_end=True,
    )
    return Trainer(
        tiny_lora(), args, train_dataset=Rows(14), eval_dataset=Rows(4, seed=0), callbacks=[]
    )


def llama() -> tuple[Any, Any]:
    """A tiny Llama with dropout, and a tokenizer of bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    from tests.data.builders import byte_level_tokenizer

    tokenizer = byte_level_tokenizer(pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    set_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        attention_dropout=0.1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config), tokenizer


def small_lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])


def sft(folder: Path) -> Any:
    """TRL's, of a LoRA, with the best one at the end."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = llama()
    texts = [f"Reverse {n}: {str(n)[::-1]}" for n in range(100, 113)]
    args = SFTConfig(
        **QUIET,
        output_dir=str(folder / "of-the-trainer"),
        max_length=24,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
    )
    return SFTTrainer(
        model,
        args,
        train_dataset=Dataset.from_dict({"text": texts}),
        eval_dataset=Dataset.from_dict({"text": texts[:3]}),
        processing_class=tokenizer,
        peft_config=small_lora(),
    )


def dpo(folder: Path) -> Any:
    """TRL's, with early stopping."""
    from datasets import Dataset
    from transformers import EarlyStoppingCallback
    from trl import DPOConfig, DPOTrainer

    model, tokenizer = llama()
    rows = [
        {"prompt": f"{n} and ", "chosen": str(n + 1), "rejected": f"no {n % 3}"} for n in range(11)
    ]
    args = DPOConfig(
        **QUIET,
        output_dir=str(folder / "of-the-trainer"),
        max_length=24,
        gradient_accumulation_steps=3,
        num_train_epochs=4,
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        load_best_model_at_end=True,
    )
    return DPOTrainer(
        model,
        args=args,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:3]),
        processing_class=tokenizer,
        peft_config=small_lora(),
        callbacks=[EarlyStoppingCallback(3)],
    )


def even_letters(completions: list[str], **_: Any) -> list[float]:
    """A reward."""
    return [sum(ord(letter) % 2 == 0 for letter in text) / 8 for text in completions]


def grpo(folder: Path) -> Any:
    """TRL's, whose steps learn from answers that an earlier step has written."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = llama()
    args = GRPOConfig(
        **QUIET,
        output_dir=str(folder / "of-the-trainer"),
        num_generations=2,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_iterations=2,
        max_completion_length=6,
        beta=0.1,
        max_steps=11,
        save_steps=3,
    )
    return GRPOTrainer(
        model,
        even_letters,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [f"{n} and " for n in range(7)]}),
        processing_class=tokenizer,
        peft_config=small_lora(),
    )


def seq2seq(folder: Path) -> Any:
    """An encoder and a decoder, measured by what they write; saved only when it is the best."""
    from transformers import (
        EarlyStoppingCallback,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        T5Config,
        T5ForConditionalGeneration,
        set_seed,
    )

    set_seed(0)
    config = T5Config(
        vocab_size=60,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        dropout_rate=0.1,
    )
    args = Seq2SeqTrainingArguments(
        **QUIET,
        output_dir=str(folder / "of-the-trainer"),
        gradient_accumulation_steps=2,
        num_train_epochs=4,
        eval_strategy="epoch",
        save_strategy="best",
        load_best_model_at_end=True,
        metric_for_best_model="same",
        greater_is_better=True,
        predict_with_generate=True,
        generation_max_length=6,
    )

    def same(predicted: Any) -> dict[str, float]:
        width = min(predicted.predictions.shape[1], predicted.label_ids.shape[1])
        pairs = predicted.predictions[:, :width] == predicted.label_ids[:, :width]
        return {"same": float(np.mean(pairs))}

    return Seq2SeqTrainer(
        T5ForConditionalGeneration(config),
        args,
        train_dataset=Rows(11),
        eval_dataset=Rows(3, seed=0),
        compute_metrics=same,
        callbacks=[EarlyStoppingCallback(2)],
    )


KINDS: dict[str, Callable[[Path], Any]] = {
    kind.__name__: kind for kind in (early, plateau, adapter, sft, dpo, grpo, seq2seq)
}


def trained(kind: str, folder: Path, callback: TemperCallback | None) -> dict[str, Any]:
    """Train as a person's script does; what came of it, clocks aside."""
    from transformers.trainer_callback import PrinterCallback

    trainer = KINDS[kind](folder)
    trainer.remove_callback(PrinterCallback)
    resumed = None
    if callback is not None:
        trainer.add_callback(callback)
        resumed = callback.resume_from()
    output = trainer.train(resume_from_checkpoint=resumed)
    trainer.save_model(str(folder / SAVED))
    state = trainer.state
    return {
        "weights": {n: p.detach().clone() for n, p in trainer.model.named_parameters()},
        "log": [without_times(entry) for entry in state.log_history],
        "train_loss": output.training_loss,
        "steps": [output.global_step, state.global_step],
        "best": [state.best_metric, state.best_global_step],
    }


def without_times(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if not name.endswith(TIMED)}


def callback_of(folder: Path, place: Path | None = None, **options: Any) -> TemperCallback:
    """As it is written for a training whose machine may go away."""
    backup = {} if place is None else {"backup": {"place": str(place), "finish_seconds": 120}}
    config = DeploymentConfig(
        output_dir=str(folder / "runs"),
        enable_monitoring=False,
        training={"checkpoint_seconds": None, "metrics_sinks": ["jsonl"]},
        **backup,
    )
    return TemperCallback(NAME, config, say=lambda line: None, **options)
