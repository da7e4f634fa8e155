"""A path of a model that is not there is answered with the one that was meant."""

from pathlib import Path

import pytest

from infrastructure.core.hub import NotOnHubError
from infrastructure.models import model_path
from infrastructure.models.model_path import (
    refuse_file,
    refuse_missing,
    refuse_missing_on_hub,
)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("runs/20260101-small-ab12/final", "models.hint_run_model_folder"),
        ("./my-modle", "core.did_you_mean(meant=./my-model)"),
    ],
)
def test_a_slip_in_a_folder_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/20260101-small-fff8/final").mkdir(parents=True)
    Path("my-model").mkdir()
    with pytest.raises(ValueError, match=r"models\.folder_missing") as refused:
        refuse_missing(given)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("file", "refusal"),
    [
        ("model.gguf", r"models\.gguf_cannot_be_trained\(path=.*model\.gguf"),
        ("MODEL.GGUF", r"models\.gguf_cannot_be_trained"),
        ("model.bin", r"models\.model_is_a_file\(path=.*model\.bin"),
    ],
)
def test_a_file_is_no_model(tmp_path: Path, file: str, refusal: str) -> None:
    for exists in (False, True):
        if exists:
            (tmp_path / file).touch()
        elif file == "model.bin":
            refuse_file(tmp_path / file)
            continue
        with pytest.raises(ValueError, match=refusal):
            refuse_file(tmp_path / file)
    (tmp_path / "folder.gguf").mkdir()
    refuse_file(tmp_path / "folder.gguf")  # a folder may have such a name


@pytest.mark.parametrize("is_reached", [False, True])
def test_a_name_is_refused_whether_the_hub_lacks_it_or_cannot_be_reached(
    is_reached: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    requests: list[tuple[object, ...]] = []

    def ask(*given: object) -> None:
        requests.append(given)
        raise NotOnHubError("no", hub_reachable=is_reached)

    monkeypatch.setattr(model_path, "hub_file", ask)
    for name in ("embedded", "tactical_mappo"):
        refuse_missing_on_hub(name)
    why = "not_on_hub" if is_reached else "hub_unreachable"
    for name, meant in (("my-modle", "my-model"), ("embeded", "embedded"), ("a/b", "")):
        hint = rf"core\.did_you_mean\(meant={meant}\)" if meant else ""
        shown = rf"name={name}, reason=models\.{why}\(\), hint={hint}, files=a\.b\)"
        with pytest.raises(ValueError, match=rf"models\.model_not_found\({shown}"):
            refuse_missing_on_hub(name, "v2", "a.b")
    assert requests[0] == ("my-modle", "config.json", "v2")


def test_what_is_nowhere_is_answered_with_what_a_model_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, hint in (("./no", "hint_model_folder_or_run"), ("a/final", "hint_run_model_folder")):
        with pytest.raises(ValueError, match="folder_missing") as refused:
            refuse_missing(name if name[0] == "." else f"./{name}")
        assert f"hint=models.{hint}()" in str(refused.value)
    refuse_missing("owner/name")
    with pytest.raises(ValueError, match=r"gguf_cannot_be_trained\(path=owner/model\.gguf"):
        refuse_missing("owner/model.gguf")
    (tmp_path / "models/my-model").mkdir(parents=True)
    (tmp_path / "models/my-modle.txt").touch()
    with pytest.raises(ValueError, match=r"did_you_mean\(meant=\./models/my-model\)"):
        refuse_missing("./models/my-modle/")
    shown = r"hub_unreachable\(\), hint=, files=models\.language_model_files\(\)\)"
    with pytest.raises(ValueError, match=shown):
        refuse_missing_on_hub("owner/name")
