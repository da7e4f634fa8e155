"""Stacks saved singly: what is in the files, and that they are the model again."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.features.stackwise.training.plain_weights import plain_tensors
from infrastructure.features.stackwise.training.quantized_trunk import (
    dequantize_layers,
    quantize_layers,
)
from infrastructure.features.stackwise.training.rack import Rack
from infrastructure.features.stackwise.training.reconstruction import FeatureDecoders
from infrastructure.features.stackwise.training.stack_adapters import StackAdapters
from infrastructure.features.stackwise.training.stack_files import (
    ABOVE,
    BELOW,
    LAYERS,
    StackRecord,
    remove_others,
    shapes_hash,
    stack_paths,
    stack_tensors,
    write_stack,
)
from infrastructure.features.stackwise.training.stack_phases import Unit, plan_stacks
from tests.features.stackwise.training.read_stacks import load_stacks
from tests.models.architectures import VOCAB_SIZE, tiny_model

NAMES = ("llama", "gpt2", "gemma2", "phi", "bloom", "qwen3_moe")


def other_weights(model: torch.nn.Module) -> torch.nn.Module:
    """A model of the same shape that knows nothing of this one."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    return other


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    result: torch.Tensor = model.eval()(torch.arange(9).unsqueeze(0) % VOCAB_SIZE).logits
    return result


def write_all(
    folder: Path, model: torch.nn.Module, final_step: int | None = 9, **more: Any
) -> Rack:
    """Two stacks of one layer."""
    rack = Rack(model)
    for index in range(2):
        holds = [LAYERS, BELOW] if index == 0 else [LAYERS, ABOVE]
        unit = Unit(index, index, index + 1)
        record = StackRecord(
            stack=index,
            num_stacks=2,
            first_layer=index,
            end_layer=index + 1,
            num_layers=2,
            holds=holds,
            sha256="",
            model={"class": type(model).__name__, "shapes": shapes_hash(rack)},
            training={"settings": {"training.seed": 0}, "data": "d"},
            final_step=final_step,
            **more,
        )
        write_stack(folder, stack_tensors(rack, unit, holds), record)
    return rack


@pytest.mark.parametrize("name", NAMES)
def test_stacks_are_the_model_again(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    write_all(tmp_path, model)
    other = other_weights(model)
    records = load_stacks(tmp_path, other)
    assert torch.equal(logits(other), logits(model))
    assert [record.holds for record in records] == [[LAYERS, BELOW], [LAYERS, ABOVE]]


def test_a_stack_holds_its_layers_by_their_names_and_nothing_twice(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    write_all(tmp_path, model)
    below, above = (load_file(stack_paths(tmp_path, s)[0]) for s in range(2))
    assert {n for n in below if "layers.0." not in n} == {"model.embed_tokens.weight"}
    assert {n for n in above if "layers.1." not in n} == {"model.norm.weight"}
    names = dict(model.named_parameters())
    assert below.keys() | above.keys() == names.keys()
    assert all(torch.equal(tensor, names[name]) for name, tensor in (below | above).items())


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_quantised_trunk_is_saved_as_it_is_computed_with(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    quantize_layers(Rack(model).layers[0], "nf_fp8")
    expected = logits(model)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    write_all(tmp_path, model)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())  # left alone
    plain = other_weights(tiny_model(name))
    load_stacks(tmp_path, plain)
    assert torch.allclose(logits(plain), expected, atol=1e-6)
    dequantize_layers(model, torch.float32)
    assert torch.equal(logits(plain), logits(model))


def test_what_is_there_for_training_only_is_not_saved(tmp_path: Path) -> None:
    model = tiny_model("llama")
    FeatureDecoders(32, 1).attach_to(model)
    assert not [name for name, _ in plain_tensors(model) if "training_only" in name]
    write_all(tmp_path, model)
    plain = other_weights(tiny_model("llama"))
    load_stacks(tmp_path, plain)
    assert torch.equal(logits(plain), logits(model))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("is_quantized", [False, True])
def test_low_rank_matrices_are_saved_as_they_will_be_merged(
    name: str, is_quantized: bool, tmp_path: Path
) -> None:
    model = tiny_model(name)
    rack = Rack(model)
    config = TrainingConfig(
        strategy="progressive",
        progressive={"target_stacks": 2, "trunk_strategy": "qlora"},
        qlora_rank=2,
    )
    adapters = StackAdapters(config, plan_stacks(config, rack, 1), list(rack.layers), 0)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("lora_B"):
            torch.nn.init.normal_(parameter)
    if is_quantized:
        quantize_layers(rack.layers[0], "nf_fp8")
        adapters.hook()
    before = logits(model)
    write_all(tmp_path, model)
    assert torch.equal(logits(model), before)
    plain = other_weights(tiny_model(name))
    load_stacks(tmp_path, plain)
    assert torch.allclose(logits(plain), before, atol=1e-4)
    dequantize_layers(model, torch.float32)
    adapters.merge()
    assert torch.equal(logits(plain), logits(model))
    assert not torch.allclose(logits(tiny_model(name)), before, atol=1e-2)  # they do something


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    """By name; a new file may get the number of one that was removed, so its time counts, too."""
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.iterdir()}


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    model = tiny_model("llama")
    write_all(tmp_path, model)
    before = identities(tmp_path)
    write_all(tmp_path, model)
    assert identities(tmp_path) == before
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] += 1  # type: ignore[union-attr, index]
    write_all(tmp_path, model)
    changed = {name for name, identity in identities(tmp_path).items() if identity != before[name]}
    assert changed == {"stack_1.safetensors", "stack_1.json"}


def test_stacks_that_no_longer_exist_are_removed(tmp_path: Path) -> None:
    kept = ["notes.json", "stack_0.json", "stack_1.safetensors", "stack_2.txt", "stack_x.json"]
    gone = ["stack_2.json", "stack_2.safetensors", "stack_10.json", ".stack_0.json.0123abcd.part"]
    for name in (*kept, *gone):
        (tmp_path / name).write_text("")
    remove_others(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


def test_a_half_written_stack_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the tensors and their record: the old record must not stand beside new
    tensors, nor be believed when the old tensors come back."""
    from infrastructure.features.stackwise.training import stack_files

    model = tiny_model("llama")
    write_all(tmp_path, model)
    other = other_weights(model)

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(stack_files, "write_record", fail)
    with pytest.raises(OSError, match="no space"):
        write_all(tmp_path, other)
    assert not stack_paths(tmp_path, 0)[1].exists()
    monkeypatch.undo()
    write_all(tmp_path, model)
    plain = other_weights(model)
    load_stacks(tmp_path, plain)
    assert torch.equal(logits(plain), logits(model))
    assert json.loads(stack_paths(tmp_path, 0)[1].read_text())["final_step"] == 9


def test_saved_models_have_no_parts_for_training_only(tmp_path: Path) -> None:
    """Plain transformers finds nothing that it does not expect."""
    from transformers import AutoModelForCausalLM

    from infrastructure.models.saving import save_model

    model = tiny_model("llama")
    FeatureDecoders(32, 1).attach_to(model)
    save_model(model, None, tmp_path / "final")
    plain, found = AutoModelForCausalLM.from_pretrained(
        tmp_path / "final", output_loading_info=True
    )
    assert not found["unexpected_keys"]
    assert not found["missing_keys"]
    assert torch.equal(logits(plain), logits(model))
