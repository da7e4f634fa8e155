"""A process knows from its environment what started it."""

import pytest

from infrastructure.core.launcher import LaunchedProcess, launched_process

VARIABLES = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_a_launcher_gives_each_process_its_rank() -> None:
    assert launched_process({**VARIABLES, "LOCAL_RANK": "1"}) == LaunchedProcess(
        3, 4, 1, "10.0.0.1"
    )
    assert launched_process(VARIABLES) == LaunchedProcess(3, 4, 3, "10.0.0.1")


@pytest.mark.parametrize("changed", [{"WORLD_SIZE": "1", "RANK": "0"}, {"RANK": ""}])
def test_a_process_alone_was_not_launched(changed: dict[str, str]) -> None:
    assert launched_process({**VARIABLES, **changed}) is None
    assert launched_process({}) is None
