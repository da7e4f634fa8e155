"""Batches on the device, losses as sums, saved models that other libraries read."""

from pathlib import Path

import numpy as np
import pytest
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.data.store.examples import TokenizedExample
from infrastructure.training.model_adapters import get_model_adapter
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from tests.slow import slow


def example(length: int, num_supervised: int) -> TokenizedExample:
    ids = np.arange(3, 3 + length, dtype=np.int32)
    return TokenizedExample(ids, np.arange(length) >= length - num_supervised)


EXAMPLES = [example(9, 4), example(5, 2), example(14, 7)]


def adapter_for(folder: Path, packing: bool = True, **settings: object) -> ModelAdapter:
    adapter = get_model_adapter(
        "standard", ModelConfig(name=str(folder)), TrainingConfig(**settings), "cpu"
    )
    adapter.data_config = DataConfig(max_length=64, packing=packing)
    adapter.initialize_model()
    return adapter


def test_what_is_counted_is_what_the_loss_is_summed_over(saved_llama: Path) -> None:
    adapter = adapter_for(saved_llama)
    assert adapter.model is not None
    output = adapter.compute_loss(adapter.model, adapter.prepare_batch(EXAMPLES))
    assert output.num_items == adapter.count_items(EXAMPLES) == 13
    assert adapter.count_tokens(EXAMPLES) == 28


@pytest.mark.parametrize("packing", [True, False])
def test_the_loss_is_that_of_the_examples_by_themselves(saved_llama: Path, packing: bool) -> None:
    """Compared with transformers' own logits, one example at a time."""
    adapter = adapter_for(saved_llama, packing)
    model = adapter.model
    assert model is not None
    model.eval()
    expected = 0.0
    with torch.no_grad():
        for one in EXAMPLES:
            ids = torch.from_numpy(one.input_ids.astype(np.int64))
            log_probs = model(input_ids=ids[None]).logits[0].log_softmax(-1)
            targets = torch.from_numpy(one.supervised[1:])
            expected -= float(log_probs[:-1].gather(1, ids[1:, None])[targets].sum())
        found = adapter.compute_loss(model, adapter.prepare_batch(EXAMPLES)).loss_sum
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_packing_is_one_row_and_padding_is_not(saved_llama: Path) -> None:
    packed = adapter_for(saved_llama, packing=True).prepare_batch(EXAMPLES)
    padded = adapter_for(saved_llama, packing=False).prepare_batch(EXAMPLES)
    assert packed["input_ids"].shape == (1, 32)
    assert padded["input_ids"].shape == (3, 16)


@pytest.mark.parametrize("packing", [True, False])
def test_what_is_computed_is_the_size_of_the_batch(saved_llama: Path, packing: bool) -> None:
    adapter = adapter_for(saved_llama, packing)
    for grid in SizeGrid:
        adapter.size_grid = grid
        for examples in (EXAMPLES, EXAMPLES[:1], [example(63, 9)] * 3):
            batch = adapter.prepare_batch(examples)
            assert adapter.count_computed(examples) == batch["input_ids"].numel()


def test_a_saved_model_is_read_by_transformers_alone(saved_llama: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    adapter = adapter_for(saved_llama)
    assert adapter.model is not None
    adapter.save(tmp_path / "final")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        assert torch.equal(plain(input_ids=ids).logits, adapter.model.eval()(input_ids=ids).logits)
    assert plain.config._attn_implementation == "sdpa"
    assert len(AutoTokenizer.from_pretrained(tmp_path / "final")) == len(adapter.tokenizer)


# torch's compiler reads .grad of every tensor, and hides the warning in a way that "error" undoes
@slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
def test_compiling_gives_the_same_loss(saved_llama: Path) -> None:
    plain, compiled = adapter_for(saved_llama), adapter_for(saved_llama, compile_mode="default")
    losses = [
        a.compute_loss(a.model, a.prepare_batch(EXAMPLES)).loss_sum.item()  # type: ignore[arg-type]
        for a in (plain, compiled)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_an_unknown_adapter_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'standard'"):
        get_model_adapter("standart", ModelConfig(), TrainingConfig(), "cpu")
