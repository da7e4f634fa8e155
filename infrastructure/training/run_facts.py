"""Facts that rank 0 sends to the other ranks, and comparison of the trainers built from them."""

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
    """Have the other ranks build the training of this prepared trainer, and wait for them.

    Called on rank 0.

    Raises:
        ConfigurationError: the training has parts that other processes cannot build.
        ProcessLostError: a rank cannot train this, or has other weights or data. The message names
            it.
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
    """Receive and return what `welcome` sends: the facts, and the files of the tokenizer.

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
    """Check that this rank trains what rank 0 trains: the same frozen weights and the same data.

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
    """Return the files of a tokenizer as bytes, for machines that do not share this disk."""
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
