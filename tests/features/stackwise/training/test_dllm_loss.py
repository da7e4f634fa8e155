"""The masked objective is dLLM's MDLM loss, on the same batch and the same masks.

`dllm_mdlm_loss.json` holds what `MDLMTrainer.compute_loss` of github.com/ZHZisZZ/dllm gave: run
outside this repository, its random numbers replaced so that it masks the tokens that ours masks at
the same t, on the model and the examples of `masked_rows.py`. Their weight is 1 / (t + 1e-6).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.features.stackwise.training.masked_rows import (
    adapter_of,
    examples,
    filled_llama,
    objective_of,
)

RECORDED = json.loads((Path(__file__).parent / "dllm_mdlm_loss.json").read_text())


def our_loss(case: dict[str, Any]) -> float:
    """The loss of one recorded case, normalised as theirs was."""
    weighting = {"scheduler": "inverse", "uniform": "none"}[case["loss_weight_type"]]
    objective = objective_of(case["time_step"], seed=case["seed"], weighting=weighting)
    model = filled_llama()
    adapter = adapter_of(model, objective)
    output = adapter.compute_loss(model, adapter.prepare_batch(examples()))
    by_token = case["loss_norm_type"] == "token"
    return output.loss_sum.item() / (output.num_items if by_token else len(examples()))


@pytest.mark.parametrize("case", RECORDED["cases"], ids=str)
def test_the_loss_is_that_of_dllm(case: dict[str, Any]) -> None:
    assert our_loss(case) == pytest.approx(case["dllm"], rel=1e-5)


def test_every_time_step_and_weight_was_recorded() -> None:
    kinds = {(c["time_step"], c["loss_weight_type"]) for c in RECORDED["cases"]}
    assert kinds == {(t, w) for t in (None, 0, 2, 4) for w in ("scheduler", "uniform")}
