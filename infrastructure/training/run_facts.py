"""Information that rank 0 sends to the other ranks so that they can build the same trainer."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.config.base import ConfigurationError
from infrastructure.core.errors import InputError
from infrastructure.training.distributed.group import Group, Status
from infrastructure.training.distributed.replicate import fingerprint
from infrastructure.training.enhanced_trainer import EnhancedTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Facts = dict[str, Any]


def welcome(trainer: EnhancedTrainer, group: Group) -> None:
    """Send the other ranks what they need to build this trainer, and wait for them.

    Called on rank 0.

    Raises:
        ConfigurationError: the training has parts that other processes cannot build.
        ProcessLostError: a rank cannot build the trainer, or has other weights or data. The message
            names it.
    """
    assert trainer.ranks is not None
    _refuse_own_extensions(trainer)
    loop, model = trainer.prepare(), trainer.model
    assert model is not None
    files = _tokenizer_files(trainer.adapter.tokenizer)
    group.decide(
        lambda: {
            "configuration": trainer.ranks.config.to_dict() if trainer.ranks else {},
            "revision": trainer.adapter.describe().get("revision"),
            "size_grid": trainer.adapter.size_grid.value,
            "precision": trainer.precision.name,
            "resolved": trainer.batch_plan().resolved(),
            "total_steps": loop.total_steps,
            "tokenizer": {name: content.numel() for name, content in files.items()},
            "sharding": trainer.sharding,
            "on_disk": trainer.adapter.on_disk,
        }
    )
    group.broadcast(content.to(trainer.device) for content in files.values())
    compare(group, trainer)


def facts_of_first(group: Group) -> tuple[Facts, dict[str, bytes]]:
    """Receive what `welcome` sends: facts about the run, and the tokenizer's files.

    Called on ranks other than 0.
    """
    facts: Facts = group.decide(dict)
    sizes: dict[str, int] = facts["tokenizer"]
    device = getattr(group, "device", torch.device("cpu"))
    contents = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes.values()]
    group.broadcast(contents)
    return facts, {
        name: content.cpu().numpy().tobytes() for name, content in zip(sizes, contents, strict=True)
    }


def compare(group: Group, trainer: EnhancedTrainer) -> None:
    """Check that this rank has the same frozen weights and the same data as rank 0.

    Raises:
        ValueError: this rank has other weights or data.
        ProcessLostError: another rank has other weights or data.
    """
    assert trainer.model is not None
    assert trainer.data is not None
    own = {
        "weights": [fingerprint(trainer.model), trainer.adapter.describe().get("base_sha256")],
        "data": [trainer.data.fingerprint, trainer.data.num_examples],
    }
    first = group.decide(lambda: own)
    for what in own:
        if own[what] != first[what]:
            raise InputError("training.rank_loaded_differently", what=what)
    group.agree(Status.FINE)


def _refuse_own_extensions(trainer: EnhancedTrainer) -> None:
    for extension in trainer.hooks.extensions:
        if extension not in trainer.configured_extensions and not extension.is_of_first_rank:
            raise ConfigurationError(
                "training.extension_in_one_process",
                num_processes=trainer.num_processes,
                extension=extension.name,
            )


def _tokenizer_files(tokenizer: "PreTrainedTokenizerBase | None") -> dict[str, torch.Tensor]:
    """Return the files of a tokenizer as tensors of bytes, to send them to other machines."""
    if tokenizer is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {
            str(file.relative_to(folder)): torch.frombuffer(
                bytearray(file.read_bytes()), dtype=torch.uint8
            )
            for file in sorted(Path(folder).rglob("*"))
            if file.is_file() and file.stat().st_size
        }
