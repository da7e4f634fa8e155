"""A process knows from its environment what started it."""

from dataclasses import replace

import pytest

from infrastructure.core.launcher import LaunchedProcess, is_launched, launched_process

VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_a_launcher_gives_each_process_its_rank() -> None:
    here = LaunchedProcess(rank=1, size=2, local_rank=0, address="10.0.0.1")
    assert launched_process({**VARIABLES, "LOCAL_RANK": "0"}) == here
    assert launched_process(VARIABLES) == replace(here, local_rank=1)


@pytest.mark.parametrize(
    "changed", [{"WORLD_SIZE": "1", "RANK": "0"}, *({name: ""} for name in VARIABLES)]
)
def test_a_process_alone_was_not_launched(changed: dict[str, str]) -> None:
    assert launched_process({**VARIABLES, **changed}) is None
    assert launched_process({}) is None
    assert [is_launched(given) for given in ({"RANK": "0"}, {"RANK": ""}, {})] == [
        True,
        False,
        False,
    ]
