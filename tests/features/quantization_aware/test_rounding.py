"""A training with rounded weights: it computes what the rounded model computes, goes on to the same
bits, and is written plain and rounded."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.family_models import save_language_model
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.models import model_manager
from infrastructure.models.model_manager import load_saved
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from tests.training.small_runs import trainer_of_three_steps

pytestmark = pytest.mark.filterwarnings("ignore")  # torchao's own, at its import
IDS = torch.arange(3, 19).unsqueeze(0)


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model.eval()(input_ids=IDS).logits
    return logits


def trainer_of(model: Path, folder: Path, kind: str, run: Path | None = None) -> EnhancedTrainer:
    rounded = ModelConfig(name=str(model), quantization_aware=kind)
    return trainer_of_three_steps(rounded, folder, 1e-3, run)


@pytest.mark.parametrize("kind", ["int4", "int8_int4"])
def test_what_is_trained_is_what_is_written_rounded(
    saved_llama: Path, tmp_path: Path, kind: str
) -> None:
    device = torch.device("cpu")
    trainer = trainer_of(saved_llama, tmp_path, kind, tmp_path / "run")
    start = logits(load_saved(saved_llama, device=device).model)
    assert not torch.equal(logits(trainer.initialize_model()), start)  # it computes rounded
    trainer.train()
    trained = logits(trainer.initialize_model())

    again = trainer_of(saved_llama, tmp_path, kind)
    again.restore(by_step(trainer.checkpoints.store)[1])  # type: ignore[union-attr]
    again.train()
    assert torch.equal(logits(again.initialize_model()), trained)

    trainer.adapter.save(tmp_path / "final")
    plain = load_saved(tmp_path / "final", device=device).model
    assert not torch.equal(logits(plain), trained)
    assert plain.state_dict().keys() == trainer.initialize_model().state_dict().keys()
    rounded = load_saved(tmp_path / f"final-{kind}", device=device).model
    assert torch.equal(logits(rounded), trained)
    assert rounded.lm_head.weight.dtype == torch.float32  # type: ignore[union-attr]


@pytest.mark.parametrize(("family", "kept"), [("gpt2", "Conv1D"), ("mixtral", "MixtralExperts")])
def test_a_model_that_would_hardly_be_rounded_is_refused_before_it_is_loaded(
    family: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchao passes over what is no linear layer without a word."""
    model = save_language_model(family, tmp_path / "model")
    monkeypatch.setattr(model_manager, "load_causal_lm", None)
    with pytest.raises(
        ValueError, match=rf"quantization_aware\.few_linear_layers\(.*layer_type={kept}\)"
    ):
        trainer_of(model, tmp_path, "int4").initialize_model()
