"""Labels are drawn from the model's own shares, whichever way its loss is computed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.features.quantum.training import fisher_labels
from infrastructure.features.quantum.training.fisher_labels import SampledLabels
from infrastructure.models.model_inputs import call_model, logits_of
from infrastructure.models.packed_attention import model_arguments
from tests.features.quantum.training.small_adapters import FP32, adapter_for, examples
from tests.training.toy import ToyAdapter


@pytest.mark.parametrize("method", ["hidden states", "all logits"])
def test_labels_are_drawn_from_the_model_with_a_seed(
    saved_llama: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of a few rows, which have the same shares as the whole."""
    monkeypatch.setattr(fisher_labels, "chunk_rows", lambda *_: 7)
    adapter = adapter_for(saved_llama)
    model: Any = adapter.model
    model.eval()
    adapter.token_loss.prepare(model)  # type: ignore[attr-defined]
    adapter.token_loss.method = method  # type: ignore[attr-defined]
    batch = adapter.prepare_batch(examples(6))
    random = torch.get_rng_state()
    found = [SampledLabels(model, adapter, FP32, seed)(batch) for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(found[0]["targets"], found[1]["targets"])
    assert not torch.equal(found[0]["targets"], found[2]["targets"])
    kept = {name: value for name, value in found[0].items() if name != "targets"}
    assert all(kept[name] is batch[name] for name in batch.keys() - {"targets"})
    assert found[0]["targets"].shape == batch["targets"].shape
    sampler = SampledLabels(model, adapter, FP32, 3)
    assert not torch.equal(sampler(batch)["targets"], sampler(batch)["targets"])
    with torch.no_grad():
        model.lm_head.weight.mul_(1e6)  # the shares are 1 and 0
        logits = logits_of(call_model(model, model_arguments(model, batch))).flatten(0, 1)
    likeliest = logits[batch["target_positions"]].argmax(dim=-1)
    assert torch.equal(SampledLabels(model, adapter, FP32, 5)(batch)["targets"], likeliest)


def test_a_batch_without_trained_tokens_has_no_labels(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama)
    [row] = examples(1)
    batch = adapter.prepare_batch([type(row)(row.input_ids, row.supervised & False)])
    for method in ("hidden states", "all logits"):
        adapter.token_loss.prepare(adapter.model)  # type: ignore[attr-defined, arg-type]
        adapter.token_loss.method = method  # type: ignore[attr-defined]
        sampler = SampledLabels(adapter.model, adapter, FP32, 0)  # type: ignore[arg-type]
        labels = sampler(batch)["targets"]
        assert (labels.dtype, len(labels)) == (torch.int64, 0)


def test_a_model_that_is_no_language_model_is_refused() -> None:
    adapter = ToyAdapter(None)
    with pytest.raises(ValueError, match=r"quantum\.no_labels_to_sample\(adapter=ToyAdapter\)"):
        SampledLabels(adapter.initialize_model(), adapter, FP32, 0)
