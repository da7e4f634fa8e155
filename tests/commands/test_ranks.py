"""When a command becomes the agent of several processes, and what it gives them."""

from pathlib import Path
from typing import Any

import pytest

from infrastructure.commands.ranks import on_several_processes
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.console import show
from infrastructure.training.distributed import launch

WORDS = ["train", "chats.jsonl", "--num-processes", "3"]


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What each agent was made from; none starts anything."""
    made: list[tuple[Any, ...]] = []

    class Agent:
        def __init__(self, words: list[str], size: int, **options: Any) -> None:
            made.append((words, size, options))

        def run(self) -> int:
            return 143

    monkeypatch.setattr(launch, "Agent", Agent)
    return made


def test_several_processes_are_started_with_the_same_words(agents: list[Any]) -> None:
    config = DeploymentConfig(num_processes=3, device="cpu")
    lines: list[Path] = []
    assert on_several_processes(config, WORDS, b"{}", lines.append) == 143
    options = {"stdin": b"{}", "show_end": show, "before_line": lines.append}
    assert agents == [(WORDS, 3, options)]


@pytest.mark.parametrize(
    ("settings", "variables"),
    [
        ({"num_processes": 1}, {}),
        ({"num_processes": "auto", "device": "cpu"}, {}),
        ({"num_processes": 3, "device": "cpu"}, {"RANK": "0"}),  # it is one of them
        # which the method refuses by name
        ({"num_processes": 3, "device": "cpu", "training.method": "dpo"}, {}),
    ],
)
def test_one_process_trains_by_itself(
    settings: dict[str, Any],
    variables: dict[str, str],
    agents: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert on_several_processes(DeploymentConfig(**settings), WORDS) is None
    assert not agents


def test_more_processes_than_gpus_are_refused_before_any_is_started(
    agents: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(
        ConfigurationError, match=r"training\.fewer_gpus_than_processes.*requested=3.*num_gpus=2"
    ):
        on_several_processes(DeploymentConfig(num_processes=3, device="cuda"), WORDS)
    assert not agents
