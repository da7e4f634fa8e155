"""A follower whose memory holds no more than one example at a time."""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from infrastructure.training.follower_process import main
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter

prepare_batch = StandardModelAdapter.prepare_batch


def prepare_one(self: StandardModelAdapter, examples: Sequence[Any]) -> dict[str, Any]:
    if len(examples) > 1:
        raise torch.OutOfMemoryError("CUDA out of memory: planted in a follower")
    return prepare_batch(self, examples)


if __name__ == "__main__":
    StandardModelAdapter.prepare_batch = prepare_one  # type: ignore[method-assign]
    sys.exit(main())
