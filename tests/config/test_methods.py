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


@pytest.mark.parametrize(
    ("name", "rows", "has_beta", "needs_beta", "has_rewards", "least_batch", "head"),
    [
        ("dpo", RowKind.PAIRS, True, True, False, 1, "CausalLM"),
        ("kto", RowKind.JUDGED, True, True, False, 2, "CausalLM"),
        ("orpo", RowKind.PAIRS, True, False, False, 1, "CausalLM"),
        ("grpo", RowKind.PROMPTS, True, False, True, 1, "CausalLM"),
        ("rloo", RowKind.PROMPTS, True, False, True, 1, "CausalLM"),
        ("reward", RowKind.PAIRS, False, False, False, 1, "SequenceClassification"),
    ],
)
def test_what_each_method_learns_from(
    name: str,
    rows: RowKind,
    has_beta: bool,
    needs_beta: bool,
    has_rewards: bool,
    least_batch: int,
    head: str,
) -> None:
    method = method_named(name)
    assert method is not None
    assert (method.rows, method.has_beta, method.needs_beta) == (rows, has_beta, needs_beta)
    assert (method.has_rewards, method.least_batch) == (has_rewards, least_batch)
    assert method.generates is (rows is RowKind.PROMPTS)
    assert method.head == f"AutoModelFor{head}"
