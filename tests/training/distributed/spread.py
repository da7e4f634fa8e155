"""Tiny trainings whose model is spread over ranks, or not: what they share.

    RANK=0 WORLD_SIZE=2 python -m tests.training.distributed.spread FOLDER [OF]

trains every case on these ranks, and goes on from what one process has saved; with OF, it only goes
on from what so many ranks have saved. Rank 0 writes the losses to FOLDER/losses OF SIZE.json.
"""

import gc
import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from infrastructure.backup.run_backup import RunBackup
from infrastructure.config.sections.backup_config import BackupConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.models.tokenizer import train_tokenizer
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.checkpoints.snapshot import restore_snapshot, take_snapshot
from infrastructure.training.distributed import checkpoint_storage
from infrastructure.training.distributed.checkpoint_storage import load_together, save_together
from infrastructure.training.distributed.group import ALONE, Group, JoinedGroup
from infrastructure.training.distributed.shard import shard_model, sum_after_backward
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.forward.gradient_accumulation import one_step, split

GLOBAL_BATCH, NUM_STEPS, SAVED_AFTER = 12, 4, 2
WORDS = ["alpha", "beta", "gamma", "delta", "red", "blue", "cat", "dog", "one", "two"]


@dataclass(frozen=True)
class Case:
    """One training; `saving` says how two ranks write their checkpoint."""

    name: str
    tied: bool
    lora: bool
    packing: bool
    micro_batch_size: int
    saving: str
    offload: bool = False


CASES = [
    Case("full, tied, packed, one micro-batch", True, False, True, 6, "shards"),
    Case("full, untied, accumulation 3", False, False, False, 2, "shards"),
    Case("lora, untied, packed, accumulation 3", False, True, True, 2, "gathered"),
    Case("full, untied, kept in main memory", False, False, True, 6, "by parts", offload=True),
    Case("full, tied, no common disk", True, False, False, 6, "apart"),
]


def make_inputs(folder: Path) -> None:
    """Two models that differ in whether embeddings and head share their weights, and rows."""
    from transformers import LlamaConfig, LlamaForCausalLM

    draw = random.Random(1)
    texts = [
        " ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(NUM_STEPS * GLOBAL_BATCH)
    ]
    rows = [{"prompt": text, "completion": text[::-1]} for text in texts]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tokenizer = train_tokenizer((row["prompt"] + row["completion"] for row in rows), 300)
    for tied in (True, False):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=30,  # the parts of two ranks, and of four, are not alike
            intermediate_size=50,
            num_hidden_layers=3,
            num_attention_heads=5,
            num_key_value_heads=5,
            max_position_embeddings=128,
            tie_word_embeddings=tied,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        target = model_folder(folder, tied)
        LlamaForCausalLM(config).save_pretrained(target)
        tokenizer.save_pretrained(target)


def model_folder(folder: Path, tied: bool) -> Path:
    return folder / ("tied" if tied else "untied")


def trainer_of(folder: Path, case: Case) -> EnhancedTrainer:
    return EnhancedTrainer(
        ModelConfig(
            name=str(model_folder(folder, case.tied)), lora_config={"r": 4} if case.lora else None
        ),
        TrainingConfig(
            batch_size=case.micro_batch_size,
            seed=3,
            max_grad_norm=0.5,
            num_epochs=1,
            mixed_precision="fp32",
        ),
        DataConfig(
            path=str(folder / "rows.jsonl"),
            packing=case.packing,
            max_length=128,
            validation_split=0.0,
        ),
        device="cpu",
    )


def steps(trainer: EnhancedTrainer, group: Group, first: int, last: int) -> list[list[float]]:
    """Loss and norm of the gradients in each step; every rank gives the same."""
    loop, state = trainer.prepare().loop, trainer.state
    step, model, numbers = loop.optimizer_step, state.model.train(), []
    batches = trainer.initialize_data().train_batches(0, 0, GLOBAL_BATCH)
    for number, examples in enumerate(batches):
        if not first <= number < last:
            continue
        total = step.adapter.count_items(examples)
        length = GLOBAL_BATCH // group.size
        share = examples[group.rank * length : (group.rank + 1) * length]
        pieces = list(split(share, state.micro_batch_size))
        loss = torch.zeros(1, dtype=torch.float64)
        for index, piece in enumerate(pieces):
            if group.size > 1:
                sum_after_backward(model, index == len(pieces) - 1)
            output = one_step(
                model, step.adapter, step.strategy, step.optimizer, piece, total_items=total
            )
            loss += output.loss_sum.double()
        group.sum([loss])
        norm = step.strategy.update_parameters(model, step.optimizer, None, step.scheduler)
        state.step = number + 1
        numbers.append([float(loss) / total, float(norm)])
    return numbers


def store_of_case(folder: Path, case: Case, size: int) -> Path:
    return folder / f"store {CASES.index(case)} of {size}"


def backup_of(folder: Path, case: Case, size: int) -> RunBackup:
    """What copies the checkpoints of a case."""
    (folder / "place").mkdir(exist_ok=True)
    root = store_of_case(folder, case, size)
    return RunBackup(root, BackupConfig(place=str(folder / "place")), run_id=root.name)


def train_alone(folder: Path, case: Case) -> list[list[float]]:
    """All steps in this process; what is there after some of them is saved."""
    trainer = trainer_of(folder, case)
    before = steps(trainer, ALONE, 0, SAVED_AFTER)
    loop, state = trainer.prepare().loop, trainer.state
    manager = CheckpointManager(store_of_case(folder, case, 1))
    manager.save(take_snapshot(state, loop.optimizer_step))
    return before + steps(trainer, ALONE, SAVED_AFTER, NUM_STEPS)


def spread_trainer(folder: Path, case: Case, group: Group) -> EnhancedTrainer:
    trainer = trainer_of(folder, case)
    mesh = init_device_mesh("cpu", (group.size,))
    shard_model(trainer.initialize_model(), mesh, offload=case.offload)
    return trainer


def train_spread(folder: Path, case: Case, group: Group) -> dict[str, Any]:
    """The same by all ranks, and what they do with the checkpoint of one process."""
    trainer = spread_trainer(folder, case, group)
    losses = steps(trainer, group, 0, SAVED_AFTER)
    loop, state = trainer.prepare().loop, trainer.state
    root = store_of_case(folder, case, group.size)
    manager = CheckpointManager(root) if group.is_first else None
    checkpoint_storage.GATHERED_BYTES = (1 << 30) if case.saving == "gathered" else 0
    checkpoint_storage.GATHERED_SHARE = 0
    checkpoint_storage.PIECE_BYTES = 1 << 14
    seen_by = checkpoint_storage.seen_by
    if case.saving == "apart" and manager is not None:
        backup = backup_of(folder, case, group.size)
        backup.check_place()
        manager.apart = backup.apart
    if case.saving in ("by parts", "apart"):  # as where the ranks have no common disk
        checkpoint_storage.seen_by = lambda *_: (group.is_first, False)
    save_together(group, manager, take_snapshot(state, loop.optimizer_step), state.model)
    checkpoint_storage.seen_by = seen_by
    if manager is not None:
        manager.collect(wait=True)
        manager.close()
    losses += steps(trainer, group, SAVED_AFTER, NUM_STEPS)
    return {"losses": losses, "gone on": go_on_spread(folder, case, group, of=1)}


def go_on_spread(folder: Path, case: Case, group: Group, of: int) -> list[list[float]]:
    """Steps of all ranks from the checkpoint that `of` ranks have written."""
    trainer = spread_trainer(folder, case, group)
    loop, state = trainer.prepare().loop, trainer.state
    step = loop.optimizer_step
    newest = None
    if group.is_first:
        backup_of(folder, case, of).repair()  # as before a run goes on
        newest = CheckpointManager(store_of_case(folder, case, of)).newest()
    restore_snapshot(load_together(group, newest, state.model, step.optimizer), state, step)
    return steps(trainer, group, SAVED_AFTER, NUM_STEPS)


def joined(folder: Path, name: str) -> JoinedGroup:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(folder / f"rendezvous {name}"), size)
    return JoinedGroup(store, rank, size, torch.device("cpu"), limit_seconds=60)


def main(folder: Path, of: int) -> None:
    torch.set_num_threads(1)
    group = joined(folder, str(of))
    train = train_spread if of == 0 else lambda *given: go_on_spread(*given, of=of)
    result = {case.name: train(folder, case, group) for case in CASES}
    if group.is_first:
        (folder / f"losses {of} {group.size}.json").write_text(json.dumps(result))
    gc.collect()  # the model is gone when its process group ends
    group.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
