"""Rank allocation in a real training: what is taken out stays out, and PEFT loads what is left."""

from pathlib import Path

import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig
from infrastructure.features.quantum.training.lora_rank_pruning import matrices, ranks_of
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from tests.features.quantum.training.quantum_runs import quantum_trainer, records, same_weights

LORA = LoraConfig(r=4, alpha=8, dropout=0.0)
QUANTUM = {"problem": "rank_allocation", "rank_budget": 0.25}


def present(trainer: EnhancedTrainer) -> dict[str, list[int]]:
    """The components of each module that add anything."""
    assert trainer.model is not None
    found = {}
    for path in ranks_of(trainer.model):
        ((a, b),) = matrices(trainer.model, path)
        sizes = a.weight.norm(dim=1) * b.weight.norm(dim=0)
        found[path] = [int(i) for i in torch.nonzero(sizes).flatten()]
    return found


@pytest.mark.parametrize("answer", ["sampler", "diagonal_fisher"])
def test_what_is_not_chosen_is_gone_for_good(
    saved_llama: Path, tmp_path: Path, answer: str
) -> None:
    trainer = quantum_trainer(
        saved_llama,
        tmp_path,
        quantum={**QUANTUM, "answer": answer},
        lora=LORA,
        optimization_frequency=3,
        max_steps=8,
    )
    trainer.train()
    (record,) = records(trainer)
    assert (record["step"], record["outcome"]) == (3, "answered")
    kept = present(trainer)
    total = sum(len(some) for some in kept.values())
    assert total == record["num_variables"] // 4
    assert {name: len(some) for name, some in kept.items()} == record["kept_by_module"]
    kept_of = f"kept={total}, total={record['num_variables']}"
    assert record["chosen"] == f"quantum.lora_components_kept({kept_of})"


def test_a_stream_of_data_is_measured_by_the_batch(saved_llama: Path, tmp_path: Path) -> None:
    trainer = quantum_trainer(
        saved_llama, tmp_path, quantum=QUANTUM, lora=LORA, optimization_frequency=1, max_steps=2
    )
    trainer.data_config.streaming = True
    trainer.train()
    assert [record["outcome"] for record in records(trainer)] == ["answered"]


def test_the_saved_model_is_a_plain_peft_model(saved_llama: Path, tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM

    trainer = quantum_trainer(
        saved_llama, tmp_path, quantum=QUANTUM, lora=LORA, optimization_frequency=2, max_steps=4
    )
    trainer.train()
    trainer.adapter.save(tmp_path / "final")
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "final")
    assert trainer.model is not None
    own = {n: p for n, p in trainer.model.named_parameters() if "lora_" in n}
    for name, parameter in loaded.named_parameters():
        if "lora_" in name:
            assert torch.equal(parameter, own.pop(name))
    assert not own


def test_a_training_that_goes_on_has_taken_out_the_same(saved_llama: Path, tmp_path: Path) -> None:
    settings = {"optimization_frequency": 2, "max_steps": 6, "checkpoint_frequency": 3}
    whole = quantum_trainer(
        saved_llama, tmp_path, quantum=QUANTUM, lora=LORA, checkpoints=tmp_path / "c", **settings
    )
    whole.train()
    assert whole.checkpoints is not None
    again = quantum_trainer(saved_llama, tmp_path, quantum=QUANTUM, lora=LORA, **settings)
    again.restore(by_step(whole.checkpoints.store)[3])
    again.train()
    assert same_weights(whole, again)
    assert present(again) == present(whole)
