"""Settings that hold for the whole process: which GPUs it sees, and who has named them."""

import os

import pytest

from infrastructure.config import process_wide
from infrastructure.config.process_wide import take_effect, wants_gpus_by_number
from infrastructure.config.sources.load import load_config


@pytest.mark.parametrize(("given", "seen"), [("1,2", "1,2"), ("", ""), (None, "7")])
def test_a_training_sees_the_gpus_that_it_names_and_else_what_it_saw(
    given: str | None, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[str] = []
    monkeypatch.setattr(process_wide, "start_console_log", levels.append)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    keywords = {"log_level": "ERROR", "cuda_visible_devices": given}
    take_effect(load_config(environment={}, keywords=keywords))
    assert (os.environ["CUDA_VISIBLE_DEVICES"], levels) == (seen, ["ERROR"])


@pytest.mark.parametrize(
    ("keywords", "environment", "wants"),
    [
        ({"cuda_visible_devices": "0"}, {}, True),
        ({"cuda_visible_devices": "0", "device": "cpu"}, {}, False),
        ({"cuda_visible_devices": ""}, {}, False),
        ({"cuda_visible_devices": "-1"}, {}, False),
        ({}, {}, False),
        ({}, {"CUDA_VISIBLE_DEVICES": "0"}, False),  # for all programs of the machine
    ],
)
def test_only_who_names_gpus_for_a_training_wants_them(
    keywords: dict[str, str], environment: dict[str, str], wants: bool
) -> None:
    config = load_config(environment=environment, keywords=keywords)
    assert wants_gpus_by_number(config) is wants
