"""DoRA and rsLoRA: each starts as it should, gives the same logits when it is loaded
again and when it is merged, and goes on to the same bits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.models.fitting import check_same_lora
from infrastructure.models.model_manager import LoadedModel, ModelManager, load_saved
from infrastructure.models.saving import save_model
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from tests.slow import slow_but
from tests.training.small_runs import trainer_of_three_steps

CPU = torch.device("cpu")
IDS = torch.arange(3, 19).unsqueeze(0)
VARIANTS: dict[str, dict[str, Any]] = {
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True},
}


def load(folder: Path, lora: dict[str, Any], **settings: Any) -> LoadedModel:
    config = ModelConfig(name=str(folder), lora_config=LoraConfig(r=4, alpha=8, **lora), **settings)
    return ModelManager(config, device=CPU, seed=0).load()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model.eval()(input_ids=IDS).logits
    return logits


def trainer_of(
    folder: Path, tmp_path: Path, lora: dict[str, Any], checkpoints: Path | None = None
) -> EnhancedTrainer:
    model = ModelConfig(name=str(folder), lora_config=LoraConfig(r=4, alpha=8, **lora))
    return trainer_of_three_steps(model, tmp_path, 1e-2, checkpoints)


@pytest.mark.parametrize("variant", slow_but(["dora"], VARIANTS))
def test_trained_resumed_saved_and_merged(saved_llama: Path, tmp_path: Path, variant: str) -> None:
    lora = VARIANTS[variant]
    start = logits(load_saved(saved_llama, device=CPU).model)
    trainer = trainer_of(saved_llama, tmp_path, lora, tmp_path / "run")
    trainer.initialize_model()
    described: Any = trainer.adapter.describe()["lora"]
    assert {**described, **lora} == described
    torch.testing.assert_close(logits(trainer.initialize_model()), start, atol=1e-5, rtol=1e-4)
    trainer.train()
    trained = logits(trainer.initialize_model())
    assert (trained - start).abs().max() > 1e-3

    again = trainer_of(saved_llama, tmp_path, lora)
    again.restore(by_step(trainer.checkpoints.store)[1])  # type: ignore[union-attr]
    again.train()
    assert torch.equal(logits(again.initialize_model()), trained)

    drawn = torch.get_rng_state()
    for _ in range(2):  # saving changes nothing
        save_model(trainer.initialize_model(), trainer.adapter.tokenizer, tmp_path / "final")
        assert torch.equal(logits(trainer.initialize_model()), trained)
        assert torch.equal(torch.get_rng_state(), drawn)
    loaded = load_saved(tmp_path / "final", device=CPU).model
    torch.testing.assert_close(logits(loaded), trained, atol=1e-5, rtol=1e-4)
    merged = loaded.merge_and_unload()  # type: ignore[operator]
    torch.testing.assert_close(logits(merged), trained, atol=1e-5, rtol=1e-4)
    config = json.loads((tmp_path / "final" / "adapter_config.json").read_text())
    assert config["r"] == 4
    assert config["use_dora"] is (variant == "dora")


def test_a_lora_goes_on_as_the_variant_that_it_is(saved_llama: Path) -> None:
    tuned = load(saved_llama, {"use_dora": True}).model
    check_same_lora(tuned, LoraConfig(r=4, alpha=8, use_dora=True), "folder")
    with pytest.raises(ValueError, match=r"models\.lora_settings_differ"):
        check_same_lora(tuned, LoraConfig(r=4, alpha=8), "folder")
