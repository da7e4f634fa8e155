"""A model folder is recognized by its file names and the headers of its weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from infrastructure.core.checksums import write_sums
from infrastructure.core.errors import DamagedFileError
from infrastructure.models.saved_model import (
    PROCESSOR_FILES,
    TOKENIZER_FILES,
    SourceKind,
    check_folder,
    check_sums,
    check_tokenizer,
    code_of_quantization,
    has_processor,
    is_quantized,
    look_into,
    notes_of_rounded,
    rounded_beside,
    shapes_of,
    weight_files,
    words_of_quantization,
)


def save(folder: Path, *names: str, stem: str = "model", **config: Any) -> Path:
    """A folder with weights of these names, two by three each if not told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {name: torch.zeros(2, 3) if "norm" not in name else torch.zeros(3) for name in names}
    save_file(shapes, folder / f"{stem}.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_kind_of_a_folder_is_that_of_its_most_special_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    final = save(run / "final", "a.weight")
    (run / "run.json").write_text("{}")
    found = look_into(run)
    assert (found.kind, found.folder) == (SourceKind.FOLDER, final)
    (final / "adapter_config.json").write_text("{}")
    assert look_into(run).kind is SourceKind.LORA_FOLDER  # whatever else of its base is there
    (final / "temper_model.json").write_text("{}")
    assert look_into(run).kind is SourceKind.REGISTERED_FOLDER
    (run / "config.json").write_text("{}")
    assert look_into(run).folder == run
    gguf = tmp_path / "other"
    gguf.mkdir()
    (gguf / "model.gguf").touch()
    with pytest.raises(ValueError, match=r"models\.gguf_cannot_be_trained\(path=.*model\.gguf"):
        look_into(gguf)


def test_what_cannot_be_loaded_is_seen_by_names_and_headers(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", "a.weight")
    (folder / "tokenizer.json").write_text("{}")
    check_folder(folder)
    for name, refusal in (
        ("tokenizer_config.json", "tokenizer_file_invalid"),
        ("tokenizer.json", "tokenizer_file_invalid"),
        ("config.json", "invalid_json"),
        ("model.safetensors", "weights_damaged"),
    ):
        content = (folder / name).read_bytes() if (folder / name).is_file() else None
        (folder / name).write_text("{")
        with pytest.raises(ValueError, match=rf"^models\.{refusal}\(") as refused:
            check_folder(folder)
        assert str(folder) in str(refused.value)
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    check_folder(folder)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"models\.weights_missing\(.*adapter_model\.safetensors"):
        check_folder(folder)
    save(folder, "a.lora_A.weight", stem="adapter_model")
    (folder / "model.safetensors").unlink()  # its base is elsewhere
    check_folder(folder)
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"models\.invalid_json"):
        check_folder(folder)


def test_weights_in_one_file_come_before_those_of_an_index(tmp_path: Path) -> None:
    folder = save(tmp_path, "b.weight", stem="second")
    save(folder, "a.weight", stem="first")
    shards = {"a.weight": "first.safetensors", "b.weight": "second.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert shapes_of(folder) == {"a.weight": [2, 3], "b.weight": [2, 3]}
    save(folder, "norm.weight")
    assert [file.name for file in weight_files(folder)] == ["model.safetensors"]
    assert shapes_of(folder) == {"norm.weight": [3]}


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt"])
def test_pickled_weights_alone_are_refused(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"weights{suffix}").touch()
    with pytest.raises(ValueError, match=rf"weights_are_pickled\(.*file=weights\{suffix}\)"):
        weight_files(tmp_path)
    save(tmp_path, "a.weight")
    assert len(weight_files(tmp_path)) == 1


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"load_in_4bit": True}, True),
        ({"load_in_4bit": False, "load_in_8bit": True}, True),
        ({"quant_method": "fp8"}, False),
        (None, False),
    ],
)
def test_bits_are_those_of_a_model_or_of_the_model_of_a_run(
    tmp_path: Path, how: Any, expected: bool
) -> None:
    given = {} if how is None else {"quantization_config": how}
    folder = save(tmp_path / "run/final", "a.weight", **given)
    assert is_quantized(folder) is is_quantized(tmp_path / "run") is expected
    assert is_quantized(tmp_path) is False


def test_a_rounded_model_lies_beside_the_final_one(tmp_path: Path) -> None:
    final, rounded = tmp_path / "final", tmp_path / "final-int4"
    final.mkdir()
    assert rounded_beside(tmp_path) is rounded_beside(final) is None
    rounded.mkdir()
    assert rounded_beside(final) is None, "it has no model"
    assert notes_of_rounded(str(final)) == []
    (rounded / "config.json").touch()
    assert rounded_beside(tmp_path) == rounded_beside(final) == rounded
    shown = f"models.weights_not_quantized(model={final}, rounded={rounded})"
    assert notes_of_rounded(str(final)) == [shown]


def test_sums_that_differ_name_their_files(tmp_path: Path) -> None:
    check_sums(tmp_path)  # there are none
    folder = save(tmp_path, "a.weight")
    write_sums(folder)
    check_sums(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(DamagedFileError, match=r"files=config\.json, sums=SHA256SUMS"):
        check_sums(folder)


@pytest.mark.parametrize("name", TOKENIZER_FILES)
def test_each_form_of_a_tokenizer_is_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"models\.tokenizer_missing"):
        check_tokenizer(tmp_path)
    (tmp_path / name).touch()
    check_tokenizer(tmp_path)
    assert not has_processor(tmp_path)


@pytest.mark.parametrize("name", PROCESSOR_FILES)
def test_each_form_of_a_processor_is_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert has_processor(tmp_path)


def test_the_code_of_a_quantisation_gives_its_settings() -> None:
    def settings(kind: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        code = f"dict({code_of_quantization(kind, 'bfloat16')})"
        given = eval(code, {"BitsAndBytesConfig": lambda **options: found.update(options) or 1})
        assert given == {"dtype": "bfloat16", "quantization_config": 1}
        return found

    assert settings("8bit") == {"load_in_8bit": True}
    assert settings("4bit") == {
        **{"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        **{"bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"},
    }
    assert code_of_quantization(None, "bfloat16") == words_of_quantization(None) == ""
    assert {words_of_quantization(kind)[0] for kind in ("4bit", "8bit")} == {"4", "8"}


def test_the_first_of_several_files_is_named_with_their_number(tmp_path: Path) -> None:
    shards = {"c": "3.safetensors", "a": "1.safetensors", "b": "2.safetensors"}
    save(tmp_path, "b", stem="2")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    shown = f"weights_incomplete(folder={tmp_path}, problem=models.shards_missing(num_missing=2, "
    with pytest.raises(ValueError, match="weights_incomplete") as refused:
        weight_files(tmp_path)
    assert str(refused.value) == f"models.{shown}num_shards=3, shard=1.safetensors))"
    for name in ("1", "3"):
        save(tmp_path, "b", stem=name)
    assert [file.name for file in weight_files(tmp_path)] == sorted(shards.values())
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ValueError, match=rf"missing\(folder={other}, file=model\.safetensors\)"):
        weight_files(other)
    for name in ("b.bin", "a.bin"):
        (other / name).touch()
    with pytest.raises(ValueError, match=rf"are_pickled\(folder={other}, file=a\.bin\)"):
        weight_files(other)
    for name in ("b.gguf", "a.gguf"):
        (other / name).touch()
    with pytest.raises(ValueError, match=r"gguf_cannot_be_trained\(path=.*/a\.gguf"):
        look_into(other)
    (other / "run.json").touch()
    with pytest.raises(ValueError, match=rf"run_has_no_final\(path={other}\)"):
        look_into(other)


def test_of_several_rounded_models_the_first_counts(tmp_path: Path) -> None:
    for kind in ("int8", "fp8", "int4"):
        save(tmp_path / f"final-{kind}", "a.weight")
    assert rounded_beside(tmp_path) == tmp_path / "final-fp8"


def test_all_files_that_differ_are_named(tmp_path: Path) -> None:
    folder = save(tmp_path, "a.weight")
    write_sums(folder)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("changed")
    shown = rf"mismatch\(folder={tmp_path}, files=config\.json, model\.safetensors, sums="
    with pytest.raises(DamagedFileError, match=shown):
        check_sums(folder)


def test_a_quantisation_has_a_name() -> None:
    assert words_of_quantization("4bit") == "4-bit NF4"
    assert words_of_quantization("8bit") == "8-bit LLM.int8()"
