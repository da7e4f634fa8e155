"""`temper config`: the settings, all or those that were changed, and a file that has them."""

from pathlib import Path

import pytest

from infrastructure.commands.main import main
from infrastructure.config.sources.load import load_config


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_changed_settings_can_be_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--epochs", "7", "--changed"]) == 0
    changed = capsys.readouterr().out
    assert main(["config", "--epochs", "7"]) == 0
    every = capsys.readouterr().out
    for shown, has_seed in ((changed, False), (every, True)):
        assert "training.num_epochs = 7" in shown
        assert ("training.seed = 0" in shown) is has_seed


@pytest.mark.parametrize("words", [[], ["my/settings.yaml"]])
def test_the_settings_are_written_where_they_are_found(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = words[0] if words else ".config/training_config.yaml"
    assert main(["config", "init", *words, "--epochs", "7"]) == 0
    assert capsys.readouterr().out == f"commands.config_file_written(file={name})\n"
    assert load_config(words[0] if words else None, environment={}).training.num_epochs == 7
    before = (tmp_path / name).read_bytes()
    assert main(["config", "init", *words]) == 2
    assert capsys.readouterr().err == f"temper: commands.config_file_exists(file={name})\n"
    assert (tmp_path / name).read_bytes() == before
