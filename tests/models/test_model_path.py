"""A path of a model that is not there is answered with the one that was meant."""

from pathlib import Path

import pytest

from infrastructure.models.model_path import refuse_missing


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            "runs/20260101-small-fff9/final",
            "core.did_you_mean(meant=runs/20260101-small-fff8/final)",
        ),
        (
            "runs/20260101-smoll-fff8/final",
            "core.did_you_mean(meant=runs/20260101-small-fff8/final)",
        ),
        ("runs/20260101-small-ab12/final", "models.hint_run_model_folder"),
        ("nowhere/20260101-small-fff8/final", "models.hint_run_model_folder"),
        ("./my-modle", "core.did_you_mean(meant=./my-model)"),
        ("runs/20260102-small-eee8/final", "models.folder_missing"),  # not finished
    ],
)
def test_a_slip_in_a_run_or_a_folder_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/20260101-small-fff8/final").mkdir(parents=True)
    Path("runs/20260102-small-eee9").mkdir()
    Path("my-model").mkdir()
    with pytest.raises(ValueError, match=r"models\.folder_missing") as refused:
        refuse_missing(given)
    assert words in str(refused.value)
