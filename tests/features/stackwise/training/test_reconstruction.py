"""Feature reconstruction in a run: a unit and its decoder learn together."""

from pathlib import Path

import torch

from tests.features.stackwise.training.test_strategy import (
    SEQUENTIAL,
    STEPS,
    train,
    weights_after,
)


def test_a_unit_learns_to_keep_features_together_with_its_decoder(tmp_path: Path) -> None:
    run = train(tmp_path, "runs", **SEQUENTIAL["reconstruct"])
    states = [weights_after(run, phase * STEPS) for phase in range(3)]
    decoder = [name for name in states[0] if name.startswith("training_only.0.")]
    assert decoder
    assert [name for name in decoder if torch.equal(states[0][name], states[1][name])] == []
    assert [name for name in decoder if not torch.equal(states[1][name], states[2][name])] == []
