"""A training with rounded weights: it computes what the rounded model computes, goes on to the same
bits, and is written plain and rounded."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.family_models import save_language_model
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.features.quantization_aware.checks import check_files, check_row
from infrastructure.features.quantization_aware.rounding import RoundedLayers, change
from infrastructure.models import model_manager
from infrastructure.models.model_manager import load_saved
from infrastructure.models.saved_model import SourceKind
from infrastructure.run.checkpoint_paths import by_step
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from tests.slow import slow_but
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


@pytest.mark.parametrize("kind", slow_but(["int8_int4"], ["int4", "int8_int4"]))
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


def test_weights_are_rounded_to_four_bits_in_groups_of_thirty_two() -> None:
    weights: Any = RoundedLayers("int4")._torchao_config()
    both: Any = RoundedLayers("int8_int4")._torchao_config()
    assert (weights.weight_dtype, weights.granularity.group_size) == (torch.int4, 32)  # type: ignore[attr-defined]
    assert (both.weight_dtype, both.weight_granularity.group_size) == (torch.int4, 32)  # type: ignore[attr-defined]
    assert type(weights) is not type(both)
    made = RoundedLayers("int4").rounding
    assert (made.kind, made.bits, made.package) == ("int4", 4, "torchao")
    wanted = SimpleNamespace(model=SimpleNamespace(quantization_aware=None))
    assert change(wanted) is None
    wanted.model.quantization_aware = "int8_int4"
    changed = change(wanted)
    assert changed is not None
    assert changed.kind == "int8_int4"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (SourceKind.LORA_FOLDER, r"quantization_aware\.with_lora\(quantization_aware=int4\)"),
        (SourceKind.REGISTERED, r"quantization_aware.*=mine.*models\.not_a_language_model"),
        (SourceKind.REGISTERED_FOLDER, r"quantization_aware.*models\.not_a_language_model"),
        (SourceKind.FOLDER, None),
        (SourceKind.HUB, None),
    ],
)
def test_what_is_no_plain_language_model_is_not_rounded(kind: SourceKind, code: str | None) -> None:
    source: Any = SimpleNamespace(kind=kind)
    with pytest.raises(ValueError, match=code) if code else nullcontext():
        RoundedLayers("int4").check_source(source, "mine")


def test_rows_must_have_whole_groups_and_most_weights_must_be_linear() -> None:
    check_row("mlp", 64)
    with pytest.raises(ValueError, match=r"row_size\(layer=mlp, width=48, group_size=32\)"):
        check_row("mlp", 48)

    class Model(torch.nn.Module):
        """A model whose first layer is rounded, and some weights are not."""

        def __init__(self, num_kept: int, width: int = 32) -> None:
            super().__init__()
            self.table, self.head = torch.nn.Embedding(99, 32), torch.nn.Linear(48, 99)
            self.layer, self.norm = torch.nn.Linear(width, 32), torch.nn.LayerNorm(500)
            self.kept = torch.nn.Conv1d(1, num_kept, 1)
            self.fewer = torch.nn.Conv2d(1, 1, 1)

        def get_output_embeddings(self) -> torch.nn.Module:
            return self.head

    RoundedLayers("int4").check_layers(Model(1023, 288))  # and 1: exactly a tenth of 10,240
    few = rf"few_linear_layers\(share={114 / 1138}, name=Model, layer_type=Conv1d\)"
    with pytest.raises(ValueError, match=few):
        RoundedLayers("int4").check_layers(Model(113))
    with pytest.raises(ValueError, match=r"row_size\(layer=layer, width=33, group_size=32\)"):
        RoundedLayers("int4").check_layers(Model(1, 33))


def test_an_embedded_width_is_widened_to_the_next_group() -> None:
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 336}
    config = SimpleNamespace(
        model=SimpleNamespace(
            quantization_aware="int4", name="embedded", embedded=SimpleNamespace(**shape)
        )
    )
    wider = r"embedded_width\(group_size=32, setting=.*intermediate_size, width=336, wider=352\)"
    with pytest.raises(ValueError, match=wider):
        check_files(config)
    config.model.embedded = SimpleNamespace(hidden_size=33, intermediate_size=64)
    with pytest.raises(ValueError, match=r"embedded\.hidden_size, width=33, wider=64"):
        check_files(config)
    config.model.embedded.hidden_size = 64
    check_files(config)
