"""What the processes of one training say to each other: JSON and safetensors, never pickle."""

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from infrastructure.training.data.store.examples import Picture, TokenizedExample

Tensors = Mapping[str, torch.Tensor]

# A machine that loses its power says nothing; after about half a minute its silence is noticed.
IDLE_SECONDS, INTERVAL_SECONDS, NUM_PROBES = 10, 5, 4


@dataclass
class Message:
    """One message: what it is about, JSON values, tensors on the CPU."""

    kind: str
    values: dict[str, Any] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)


class Channel:
    """The connection of two processes.

    Attributes:
        connection: what `multiprocessing.connection.wait` takes.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            for option, value in (
                (socket.TCP_KEEPIDLE, IDLE_SECONDS),
                (socket.TCP_KEEPINTVL, INTERVAL_SECONDS),
                (socket.TCP_KEEPCNT, NUM_PROBES),
            ):
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self.connection = Connection(connected.detach())

    def send(self, message: Message) -> None:
        """Hand a message over.

        Raises:
            OSError: nobody is there any more.
        """
        from safetensors.torch import save

        self.connection.send_bytes(json.dumps([message.kind, message.values]).encode())
        self.connection.send_bytes(save(dict(message.tensors)) if message.tensors else b"")

    def receive(self, most_bytes: int | None = None) -> Message:
        """Wait for the next message.

        Args:
            most_bytes: refuse a longer one.

        Raises:
            EOFError, OSError: nobody is there any more.
        """
        from safetensors.torch import load

        kind, values = json.loads(self.connection.recv_bytes(most_bytes))
        tensors = self.connection.recv_bytes(most_bytes)
        return Message(kind, values, load(tensors) if tensors else {})

    def close(self) -> None:
        self.connection.close()


def packed_examples(examples: Sequence[Any]) -> Message:
    """Examples as a message: token ids in one tensor, or values that JSON knows.

    Raises:
        TypeError: they are neither.
    """
    if examples and all(isinstance(example, TokenizedExample) for example in examples):
        ids = np.concatenate([example.input_ids for example in examples])
        supervised = np.concatenate([example.supervised for example in examples])
        values = {
            "lengths": [len(example.input_ids) for example in examples],
            "tasks": [example.task for example in examples],
        }
        if any(example.pictures for example in examples):
            values["pictures"] = [
                [[p.sha256, p.num_bytes, p.path, p.start] for p in example.pictures]
                for example in examples
            ]
        tensors = {"ids": torch.from_numpy(ids), "supervised": torch.from_numpy(supervised)}
        return Message("tokens", values, tensors)
    if not _is_kept_by_json(list(examples)):
        raise TypeError(
            f"examples such as {type(examples[0]).__name__} cannot be sent to another process:"
            " train them with num_processes 1"
        )
    return Message("values", {"examples": list(examples)})


def _is_kept_by_json(values: list[Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(values)) == values)
    except TypeError:
        return False


def unpacked_examples(message: Message) -> list[Any]:
    """The examples that `packed_examples` was given."""
    if message.kind == "values":
        return list(message.values["examples"])
    ends = np.cumsum(message.values["lengths"])[:-1]
    ids = np.split(message.tensors["ids"].numpy(), ends)
    supervised = np.split(message.tensors["supervised"].numpy(), ends)
    tasks = message.values["tasks"]
    pictures = message.values.get("pictures") or [()] * len(tasks)
    parts = zip(ids, supervised, tasks, pictures, strict=True)
    return [
        TokenizedExample(row, mask, task, tuple(Picture(*one) for one in shown))
        for row, mask, task, shown in parts
    ]
