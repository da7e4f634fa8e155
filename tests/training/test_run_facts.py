"""Rank 0 sends all that the others need to build its trainer, and they unpack the same."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.distributed.group import Group
from infrastructure.training.distributed.shard import Sharding
from infrastructure.training.run_facts import facts_of_first, welcome


class Tokenizer:
    """Files in folders; an empty one need not be sent."""

    def save_pretrained(self, folder: str) -> None:
        Path(folder, "sub").mkdir()
        Path(folder, "sub", "merges.txt").write_bytes(b"a b\xff")
        Path(folder, "tokenizer.json").write_bytes(b"{}")
        Path(folder, "empty").touch()


FILES = {"sub/merges.txt": b"a b\xff", "tokenizer.json": b"{}"}


class Wire(Group):
    """What rank 0 sends is what another rank receives."""

    def __init__(self) -> None:
        self.decided: list[Any] = []
        self.sent: list[torch.Tensor] = []

    def decide(self, make: Callable[[], Any]) -> Any:
        if self.is_first:
            self.decided.append(make())
        return self.decided[0 if self.rank else -1]

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        tensors = list(tensors)
        if self.is_first:
            self.sent = [tensor.clone() for tensor in tensors]
        for tensor, sent in zip(tensors, self.sent, strict=True):
            tensor.copy_(sent)


def session_of(tokenizer: Tokenizer | None) -> Any:
    adapter = SimpleNamespace(
        tokenizer=tokenizer,
        size_grid=SizeGrid.SIXTEENTHS,
        on_disk=True,
        device=torch.device("cpu"),
        precision=SimpleNamespace(name="bf16"),
        describe=lambda: {"revision": "abc", "base_sha256": "of the base"},
    )
    loop = SimpleNamespace(
        optimizer_step=SimpleNamespace(adapter=adapter),
        total_steps=7,
        data=SimpleNamespace(fingerprint="of the rows", num_examples=5),
    )
    return SimpleNamespace(loop=loop, state=SimpleNamespace(model=torch.nn.Linear(1, 1)))


@pytest.mark.parametrize("tokenizer", [Tokenizer(), None])
def test_another_rank_receives_what_rank_0_has(tokenizer: Tokenizer | None) -> None:
    wire, config = Wire(), DeploymentConfig(num_processes=2)
    resolved = {"training.batch_size": 4}
    welcome(session_of(tokenizer), resolved, Sharding.SHARD, config, wire)
    wire.rank = 1
    facts, files = facts_of_first(wire)
    expected = {} if tokenizer is None else FILES
    assert files == expected
    assert facts == {
        "configuration": config.to_dict(),
        "revision": "abc",
        "size_grid": "sixteenths",
        "precision": "bf16",
        "resolved": resolved,
        "total_steps": 7,
        "tokenizer": {name: len(content) for name, content in expected.items()},
        "sharding": "yes",
        "on_disk": True,
    }
    (own,) = wire.decided[1:]  # what each rank compares with its own
    assert own["data"] == ["of the rows", 5]
    assert own["weights"][1] == "of the base"
