"""Reading the files of stacks, as anybody may: plain safetensors, with a record beside each."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from infrastructure.core.checksums import read_record
from infrastructure.features.stackwise.training.stack_files import (
    StackRecord,
    each_once,
    stack_paths,
)
from infrastructure.models.model_inputs import inner_model


def read_stack(folder: Path, stack: int) -> tuple[StackRecord, dict[str, torch.Tensor]]:
    tensor_file, record_file = stack_paths(folder, stack)
    return StackRecord(**read_record(record_file)), load_file(tensor_file)


def load_stacks(folder: Path, model: torch.nn.Module) -> list[StackRecord]:
    """Load all stacks of a folder into a model, each of whose tensors they hold."""
    stacks = [read_stack(folder, s) for s in range(len(list(folder.glob("stack_*.json"))))]
    weights = {name: tensor for _, tensors in stacks for name, tensor in tensors.items()}
    inner = inner_model(model)
    assert weights.keys() == each_once(inner.state_dict()).keys()
    inner.load_state_dict(weights, strict=False)  # a tied head is there once
    return [record for record, _ in stacks]
