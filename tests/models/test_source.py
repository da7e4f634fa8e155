"""Names and folders are understood, and wrong ones refused in a sentence, before loading."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.models.saved_model import (
    SourceKind,
    weight_files,
    weights_sha256,
)
from infrastructure.models.source import (
    find_source,
    registered_name,
    starts_from_scratch,
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("embedded", SourceKind.EMBEDDED),
        ("tactical_mappo", SourceKind.REGISTERED),
        ("someone/some-model", SourceKind.HUB),
        ("gpt2", SourceKind.HUB),
    ],
)
def test_names_of_each_kind(name: str, kind: SourceKind) -> None:
    assert find_source(name).kind is kind


def test_a_folder_is_found_from_where_one_is(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_source(str(llama_folder))
    assert (found.kind, found.location) == (SourceKind.FOLDER, str(llama_folder))
    monkeypatch.chdir(llama_folder.parent)
    assert find_source("llama") == found


def test_a_run_stands_for_its_final_model(llama_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"models\.run_has_no_final"):
        find_source(str(run))
    llama_folder.rename(run / "final")
    assert find_source(str(run)).location == str(run / "final")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("./nowhere", "models.folder_missing"),
        ("/nowhere/at/all", "models.folder_missing"),
        ("a/b/c", "models.folder_missing"),
        (" ", "models.folder_missing"),
    ],
)
def test_paths_that_are_not_there(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        find_source(name)


def test_a_misspelt_folder_gets_the_one_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny-llama").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"models\.folder_missing"):
        find_source("./tiny-lama")


def test_a_model_whose_replacement_was_killed_is_brought_back(
    llama_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for wanted in (run, run / "final"):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(llama_folder, run / ".final.0123abcd.old")
        (run / ".final.0123abcd.part").mkdir()
        assert find_source(str(wanted)).folder == run / "final"
        assert [path.name for path in run.iterdir()] == ["final"]
    (run / "final").rename(run / ".final.0123abcd.old")
    (run / ".final.0123abcd.old" / "temper_model.json").write_text('{"model": "tactical_mappo"}')
    assert registered_name(str(run)) == "tactical_mappo"


def test_folders_and_files_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"models\.folder_has_no_model"):
        find_source(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"models\.model_is_a_file"):
        find_source(str(tmp_path / "config.json"))


def test_weights_that_may_not_be_read_are_not_missing(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As safetensors says."""

    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError, match=r"model\.safetensors"):
        weight_files(llama_folder)


@pytest.mark.parametrize("keep_bytes", [4, 200, -100])
def test_a_cut_off_file_is_damaged(llama_folder: Path, keep_bytes: int) -> None:
    file = llama_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep_bytes])
    with pytest.raises(ValueError, match=r"models\.weights_damaged"):
        weight_files(llama_folder)


def test_a_missing_shard(llama_folder: Path) -> None:
    single = llama_folder / "model.safetensors"
    tensors = load_file(single)
    names = sorted(tensors)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for shard, keys in shards.items():
        save_file({key: tensors[key] for key in keys}, llama_folder / shard)
    weight_map = {key: shard for shard, keys in shards.items() for key in keys}
    (llama_folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map})
    )
    single.unlink()
    assert [file.name for file in weight_files(llama_folder)] == sorted(shards)
    (llama_folder / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"models\.shards_missing.*num_missing=1.*num_shards=2"):
        weight_files(llama_folder)


def test_an_index_without_a_map_of_shards(llama_folder: Path) -> None:
    (llama_folder / "model.safetensors").unlink()
    (llama_folder / "model.safetensors.index.json").write_text('{"weight_map": ["a", "b"]}')
    with pytest.raises(ValueError, match=r"models\.shard_index_empty"):
        weight_files(llama_folder)


def test_the_hash_is_of_the_weights_alone(llama_folder: Path, tmp_path: Path) -> None:
    before = weights_sha256(weight_files(llama_folder))
    parts = [tmp_path / name for name in ("a", "b")]
    for part in parts:
        part.write_text(part.name)
    both = weights_sha256(parts)
    assert weights_sha256(parts[::-1]) == both
    assert weights_sha256([parts[0], parts[1].rename(tmp_path / "c")]) != both
    moved = llama_folder.rename(tmp_path / "elsewhere")
    (moved / "config.json").write_text("{}")
    assert weights_sha256(weight_files(moved)) == before
    tensors = load_file(moved / "model.safetensors")
    tensors["model.norm.weight"] += torch.finfo(torch.float32).eps
    save_file(tensors, moved / "model.safetensors")
    assert weights_sha256(weight_files(moved)) != before


def test_registered_name(tmp_path: Path) -> None:
    assert registered_name("tactical_mappo") == "tactical_mappo"
    assert registered_name("embedded") is None
    assert registered_name(str(tmp_path)) is None
    (tmp_path / "temper_model.json").write_text('{"model": "tactical_mappo"}')
    assert registered_name(str(tmp_path)) == "tactical_mappo"


def test_a_name_is_a_kind_before_it_is_a_folder(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert find_source("~/llama").folder == llama_folder
    for name in ("tactical_mappo", "embedded"):
        shutil.copytree(llama_folder, tmp_path / name)
        assert find_source(name).location == name
        assert find_source(f"./{name}").folder == tmp_path / name
    (tmp_path / "run/final").mkdir(parents=True)
    (tmp_path / "run/final/temper_model.json").write_text('{"model": "other"}')
    assert registered_name("run") == registered_name("~/run") == "other"
    assert registered_name("llama") is None


@pytest.mark.parametrize(
    ("name", "expected"), [("embedded", True), ("tactical_mappo", True), ("owner/name", False)]
)
def test_new_weights_are_those_of_a_model_that_is_made_here(name: str, expected: bool) -> None:
    assert starts_from_scratch(ModelConfig(name=name)) is expected
