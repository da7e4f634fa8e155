"""A quantum step is rank 0's alone: with several processes all do what it has chosen."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.features.quantum.training.quantum_runs import records
from tests.slow import slow
from tests.training.distributed.small_groups import small_config, trained, weights_of

# Sums in another order, through a few steps of AdamW.
CLOSE = {"rtol": 2e-5, "atol": 1e-5}


def blocks_chosen(
    folder: Path, model: Path, **settings: Any
) -> tuple[list[float], list[dict[str, Any]], torch.Tensor]:
    """The losses, the records of two quantum steps and the weights of a training."""
    config = small_config(
        folder,
        model,
        **{
            "training.enabled_extensions": ["quantum"],
            "training.optimization_frequency": 2,
            "training.max_steps": 4,
            "quantum.problem": "block_selection",
            "quantum.num_blocks": 1,
            "quantum.max_overhead_percent": 1e6,
        },
        **settings,
    )
    losses, trainer = trained(config)
    return losses, records(trainer), weights_of(trainer)


@slow
def test_two_processes_train_the_blocks_that_one_trains(saved_llama: Path, tmp_path: Path) -> None:
    losses, alone, weights = blocks_chosen(tmp_path, saved_llama)
    shared, together, same = blocks_chosen(tmp_path, saved_llama, num_processes=2)
    assert [record["outcome"] for record in together] == ["answered", "answered"]
    assert [record["blocks"] for record in together] == [record["blocks"] for record in alone]
    for one, other in zip(together, alone, strict=True):
        assert one["energy"] == pytest.approx(other["energy"], rel=1e-3)
    torch.testing.assert_close(torch.tensor(shared), torch.tensor(losses), **CLOSE)
    torch.testing.assert_close(same, weights, rtol=0.0, atol=1e-4)
