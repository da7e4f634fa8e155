"""A method of your own is one object, and decides which settings apply."""

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.methods import SFT, Method, RowKind, method_named
from infrastructure.config.registries import METHODS

OWN = Method("mine", "Mine", RowKind.PAIRS, trainer="trl:DPOTrainer", config="trl:DPOConfig")


def test_every_built_in_method_is_there() -> None:
    found = [method_named(name) for name in METHODS.built_in]
    assert None not in found
    assert method_named(SFT) is None
    assert method_named("nothing_like_it") is None


@pytest.mark.parametrize("name", ["mine", f"{__name__}:OWN"])
def test_its_kind_decides_which_settings_have_an_effect(name: str) -> None:
    with METHODS.registered("mine", OWN):
        config = DeploymentConfig(training={"method": name, "beta": 0.2})
        assert method_named(name) is OWN
        assert not [problem for problem in config.problems() if "beta" in problem]
        config.training.temperature = 0.5
        (problem,) = [one for one in config.problems() if "temperature" in one]
        assert "config.unused_method_generates_nothing" in problem
