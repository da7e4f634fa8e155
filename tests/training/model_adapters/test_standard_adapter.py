"""Batches on the device, losses as sums, saved models that other libraries read."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.config.sections.resource_config import CacheConfig, MemoryConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.data.samples import (
    SAMPLE_HELDOUT,
    SAMPLE_TASK_COLUMN,
    SAMPLE_TOKENIZER,
    SAMPLE_TRAIN,
)
from infrastructure.data.store.examples import EXAMPLES as EXAMPLES_KEY
from infrastructure.data.store.examples import TokenizedExample
from infrastructure.optimization.compiling import is_compiled
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.training.model_adapters import get_model_adapter, standard_adapter
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.model_adapters.standard_adapter import StandardModelAdapter
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


def test_a_batch_is_on_its_device_with_its_examples_where_they_are_wanted(
    saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter: Any = adapter_for(saved_llama)
    assert EXAMPLES_KEY not in adapter.prepare_batch(EXAMPLES)
    monkeypatch.setattr(type(adapter.training_config), "names_examples", True)
    adapter.device = torch.device("meta")
    adapter.data_config.pin_memory = False
    batch = adapter.prepare_batch(EXAMPLES)
    assert batch[EXAMPLES_KEY] == EXAMPLES
    tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
    assert len(tensors) > 2
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("packing", [True, False])
def test_a_model_is_described_as_it_is_trained(
    saved_llama: Path, packing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter: Any = adapter_for(saved_llama, packing)
    described = adapter.describe()
    assert described == adapter.description | {
        "packing": packing,
        "loss_method": adapter.token_loss.method,
    }
    assert described["name"] == str(saved_llama)
    assert adapter.notes() == []
    monkeypatch.setattr(standard_adapter, "describe_added", lambda model: {"extensions": model})
    adapter.note_added_weights()
    assert adapter.describe() == {**described, "extensions": adapter.model}


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


def test_the_model_is_loaded_by_all_settings_that_concern_it(tmp_path: Path) -> None:
    training = TrainingConfig(
        seed=5,
        gradient_checkpointing=True,
        gradient_checkpointing_mode="selective",
        memory_efficient_attention=False,
        time_step_masking=True,
    )
    adapter = StandardModelAdapter(ModelConfig(), training, torch.device("cpu"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n')
    adapter.data_config = DataConfig(path=str(rows), max_length=77, validation_split=0.0)
    adapter.saved_tokenizer, adapter.on_disk = tmp_path, True
    manager = adapter._manager()
    assert (manager.seed, manager.max_length, manager.attention) == (5, 77, "eager")
    assert (manager.gradient_checkpointing, manager.checkpointing_mode) == (True, "selective")
    assert (manager.tokenizer_directory, len(manager.changes)) == (tmp_path, 1)
    assert (manager.on_disk, manager.known_tokenizer) == (True, None)
    assert manager.tokenizer_texts is not None
    assert any("a" in text for text in manager.tokenizer_texts())
    adapter.data_config = DataConfig(
        path=str(SAMPLE_TRAIN), eval_path=str(SAMPLE_HELDOUT), task_column=SAMPLE_TASK_COLUMN
    )
    assert adapter._manager().known_tokenizer == SAMPLE_TOKENIZER


def test_the_data_is_read_as_the_adapter_was_given_it(
    saved_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    class Pipeline:
        """Remembers what it was made of."""

        def __init__(self, *given: Any, **named: Any) -> None:
            made.append((given, named))

        def prepare(self) -> None:
            made.append(((), {}))

    monkeypatch.setattr(standard_adapter, "DataPipeline", Pipeline)
    adapter = adapter_for(saved_llama)
    adapter.memory_config = MemoryConfig(gpu_memory_fraction=0.5)
    cache = CacheConfig(directory=str(tmp_path))
    assert isinstance(adapter.create_data_source(cache, 9), Pipeline)
    named = {"cache_config": cache, "seed": 9, "memory_config": adapter.memory_config}
    expected = ((adapter.data_config, adapter.tokenizer), {**named, "pictures": None})
    assert made == [expected, ((), {})]


def test_what_will_be_compiled_is_computed_at_all_positions(saved_llama: Path) -> None:
    """Compiled layers take no hooks, and "auto" decides when the training begins."""
    for mode, narrows in ((None, True), ("auto", False)):
        adapter: Any = adapter_for(saved_llama, compile_mode=mode)
        assert adapter.token_loss.narrows_last_mlp is narrows
        assert not is_compiled(adapter.model)


def test_the_model_is_compiled_below_its_output_layer_in_the_mode_that_is_set(
    saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(standard_adapter, "set_compiled", lambda *given: calls.append(given))
    for mode in (None, "auto", "reduce-overhead"):
        adapter: Any = adapter_for(saved_llama, compile_mode=mode)
    assert calls == [(adapter.model.model, True, "reduce-overhead")]
    adapter.model = torch.nn.Linear(1, 1)  # has no such part
    adapter.set_compiled(False)
    assert calls[1:] == [(adapter.model, False, "default")]


@pytest.mark.parametrize(
    ("device", "balances", "grid"),
    [
        ("cpu", False, SizeGrid.EIGHTHS),
        ("cuda", False, SizeGrid.SIXTEENTHS),
        ("cpu", True, SizeGrid.EXACT),
    ],
)
def test_lengths_are_rounded_up_where_padding_does_not_change_the_loss(
    device: str, balances: bool, grid: SizeGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter: Any = StandardModelAdapter(ModelConfig(), TrainingConfig(), torch.device(device))
    adapter.data_config = DataConfig(packing=False)
    prepared: list[object] = []
    adapter.token_loss = SimpleNamespace(prepare=prepared.append, balances=balances)
    monkeypatch.setattr(adapter, "_masks", lambda model: None)
    model = torch.nn.Linear(1, 1)
    adapter._probe(model)
    assert (adapter.size_grid, adapter.packs, prepared) == (grid, False, [model])


@pytest.mark.parametrize(("packs", "is_changed"), [(True, True), (False, False)])
def test_weights_that_stay_on_disk_are_probed_by_a_few_of_their_blocks(
    packs: bool, is_changed: bool, saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole model then attends as the few blocks do."""
    adapter: Any = StandardModelAdapter(ModelConfig(), TrainingConfig(), torch.device("cpu"))
    adapter.on_disk = True
    whole, few = object(), object()
    loaded = SimpleNamespace(model=whole, tokenizer=object(), description={"name": "m"}, notes=[])
    manager = SimpleNamespace(load=lambda: loaded, load_few_blocks=lambda: few)
    monkeypatch.setattr(adapter, "_manager", lambda: manager)
    probed: list[object] = []
    monkeypatch.setattr(adapter, "_probe", probed.append)
    attention = {whole: "sdpa", few: "packed" if packs else "sdpa"}
    monkeypatch.setattr(standard_adapter, "attention_implementation", attention.__getitem__)
    changed: list[object] = []
    monkeypatch.setattr(standard_adapter, "use_packed_attention", changed.append)
    converted: list[object] = []
    monkeypatch.setattr(standard_adapter, "train_in_fp8", converted.append)
    precisions = [SimpleNamespace(name=name, autocast=nullcontext) for name in ("bf16", "fp8")]
    for adapter.precision in precisions:
        assert adapter.initialize_model() is adapter.model is whole
    assert adapter.tokenizer is loaded.tokenizer
    assert (probed, changed, converted) == ([few] * 2, [whole] * 2 * is_changed, [whole])


def test_what_was_found_at_loading_is_noted(saved_llama: Path, tmp_path: Path) -> None:
    """A mask token that was added, and a window that hidden tokens do not stop at."""
    from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2}
    tokenizer = AutoTokenizer.from_pretrained(saved_llama)
    seen = "models.windowed_layers_see_whole_row"
    for window, is_noted in ((63, True), (64, False)):
        config = MistralConfig(
            vocab_size=304, intermediate_size=32, sliding_window=window, pad_token_id=0, **sizes
        )
        MistralForCausalLM(config).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        notes = adapter_for(tmp_path, time_step_masking=True).notes()
        assert sum("<|mask|>" in note for note in notes) == 1
        assert any(f"{seen}(window={window})" in note for note in notes) is is_noted


def test_an_unknown_adapter_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"what=model adapter, name=standart,.*\(meant=standard\)"):
        get_model_adapter("standart", ModelConfig(), TrainingConfig(), "cpu")


def test_tokens_that_may_be_hidden_are_those_of_tokenizer_and_model(
    saved_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may have rows that no token has, and a token that is not the last one a high ID."""
    adapter: Any = adapter_for(saved_llama)
    num_rows = adapter.model.get_input_embeddings().num_embeddings
    given: list[tuple[Any, ...]] = []
    made = object()
    features = [lambda *_: None, lambda *them: given.append(them) or made]
    monkeypatch.setattr(standard_adapter, "all_of", lambda name: features * (name == "objective"))
    for largest, expected in ((num_rows - 5, num_rows - 4), (num_rows + 3, num_rows)):
        monkeypatch.setattr(adapter.tokenizer, "get_vocab", {"a": largest, "b": 3}.copy)
        assert adapter._masks(adapter.model) is made
        assert given[-1] == (adapter.training_config, adapter.tokenizer, expected)


class Doubled:
    """An objective that hides every second token, and weighs what it hides."""

    corruption, weighting = "doubled", "some"

    def check_model(self, model: torch.nn.Module) -> None:
        self.checked = model

    def mask(self, example: TokenizedExample, *, held_out: bool = False) -> Any:
        positions = np.arange(1, len(example.input_ids), 2)
        hidden = example.input_ids.copy()
        hidden[positions] = 2
        weight = 0.5 if held_out else len(positions)
        targets = example.input_ids[positions].astype(np.int64)
        return SimpleNamespace(
            input_ids=hidden, positions=positions, targets=targets, weight=weight
        )

    def count_items(self, example: TokenizedExample, *, held_out: bool = False) -> int:
        return 100 * held_out + len(example.input_ids)


@pytest.mark.parametrize("held_out", [False, True])
def test_hidden_tokens_are_the_targets_at_their_places_in_padded_rows(
    saved_llama: Path, held_out: bool
) -> None:
    adapter: Any = adapter_for(saved_llama)
    assert adapter.packs
    adapter.set_objective(Doubled())
    assert adapter.objective.checked is adapter.model
    adapter.model.train(not held_out)
    batch = adapter.prepare_batch(EXAMPLES)
    ids = batch["input_ids"].flatten()[batch["target_positions"]]
    assert (adapter.packs, batch["is_bidirectional"], "labels" in batch) == (False, True, False)
    assert ids.tolist() == [2] * (4 + 2 + 7)
    tokens = [*example(9, 1).input_ids[1::2], *example(5, 1).input_ids[1::2]]
    assert batch["targets"].tolist() == [*tokens, *example(14, 1).input_ids[1::2]]
    weights = [0.5] * 13 if held_out else [4.0] * 4 + [2.0] * 2 + [7.0] * 7
    assert batch["target_weights"].tolist() == weights
    assert batch["num_items"] == adapter.count_items(EXAMPLES) == 28 + 300 * held_out
    assert adapter.compute_loss(adapter.model, batch).num_items == batch["num_items"]
    assert adapter.describe()["corruption"] == "doubled"
    adapter.objective.weighting = "none"
    assert "target_weights" not in adapter.prepare_batch(EXAMPLES)
