"""Information that rank 0 sends to the other ranks, so that they can prepare the same session."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import InputError
from infrastructure.training.distributed.group import Group, Status
from infrastructure.training.distributed.replicate import fingerprint
from infrastructure.training.distributed.shard import Sharding
from infrastructure.training.loop.session import TrainingSession

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Facts = dict[str, Any]


def welcome(
    session: TrainingSession,
    resolved: Mapping[str, object],
    sharding: Sharding | None,
    config: DeploymentConfig,
    group: Group,
) -> None:
    """Send the other ranks what they need to prepare the same session, and wait for them.

    Called on rank 0.

    Args:
        resolved: the batch plan, as `BatchPlan.resolved`.

    Raises:
        ProcessLostError: a rank cannot prepare the session, or has other weights or data. The
            message names it.
    """
    adapter = session.loop.optimizer_step.adapter
    files = _tokenizer_files(adapter.tokenizer)
    group.decide(
        lambda: {
            "configuration": config.to_dict(),
            "revision": adapter.describe().get("revision"),
            "size_grid": adapter.size_grid.value,
            "precision": adapter.precision.name,
            "resolved": resolved,
            "total_steps": session.loop.total_steps,
            "tokenizer": {name: content.numel() for name, content in files.items()},
            "sharding": sharding,
            "on_disk": adapter.on_disk,
        }
    )
    group.broadcast(content.to(adapter.device) for content in files.values())
    compare(group, session)


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


def compare(group: Group, session: TrainingSession) -> None:
    """Check that this rank has the same frozen weights and the same data as rank 0.

    Raises:
        ValueError: this rank has other weights or data.
        ProcessLostError: another rank has other weights or data.
    """
    adapter, data = session.loop.optimizer_step.adapter, session.loop.data
    own = {
        "weights": [fingerprint(session.state.model), adapter.describe().get("base_sha256")],
        "data": [data.fingerprint, data.num_examples],
    }
    first = group.decide(lambda: own)
    for what in own:
        if own[what] != first[what]:
            raise InputError("training.rank_loaded_differently", what=what)
    group.agree(Status.FINE)


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
