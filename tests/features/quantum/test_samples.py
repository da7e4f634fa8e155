"""The quantum step that a run on the sample data includes, unless its settings say otherwise."""

from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.data.samples import PLACE, use_sample_data
from infrastructure.features.quantum.config import AT_ANY_COST

KEYS = ("training.enabled_extensions", "quantum.candidates", "quantum.max_overhead_percent")
ADDED = (["quantum"], 20, AT_ANY_COST)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ADDED),
        ({"quantum.candidates": 7}, (["quantum"], 7, AT_ANY_COST)),
        ({"quantum.max_overhead_percent": 3.0}, (["quantum"], 20, 3.0)),
        ({"quantum.problem": "block_selection"}, ([], "auto", "auto")),
        ({"data.streaming": True}, ([], "auto", "auto")),
        ({"training.enabled_extensions": []}, ([], "auto", "auto")),
        ({"training.optimization_frequency": 5}, ([], "auto", "auto")),
    ],
    ids=str,
)
def test_a_small_step_is_added_where_it_is_not_decided(
    given: dict[str, Any], expected: tuple[object, ...]
) -> None:
    config: Any = DeploymentConfig(**given)
    use_sample_data(config)
    training, quantum = config.training, config.quantum
    found = training.enabled_extensions, quantum.candidates, quantum.max_overhead_percent
    assert found == expected
    if not given:
        assert [config.source(key).place for key in KEYS] == [PLACE] * 3
