"""Any module can be registered, built by name and saved by name."""

from collections.abc import Iterator

import pytest
import torch

from infrastructure.config.registries import REGISTERED_MODELS
from infrastructure.config.sections.model_config import ModelConfig
from infrastructure.models.model_manager import ModelManager
from infrastructure.models.registry import MODELS, ModelEntry, register_model

CPU = torch.device("cpu")


@pytest.fixture
def registered() -> Iterator[str]:
    name = "one-layer"
    register_model(name, ModelEntry(lambda: torch.nn.Linear(3, 2), adapter="standard"))
    assert name in REGISTERED_MODELS
    assert MODELS[name].adapter == "standard"
    yield name
    del MODELS[name]
    REGISTERED_MODELS.remove(name)


def test_a_registered_module_is_built_from_the_seed(registered: str) -> None:
    def build(seed: int) -> torch.Tensor:
        config = ModelConfig(name=registered)
        return ModelManager(config, device=CPU, seed=seed).load().model.weight

    assert torch.equal(build(1), build(1))
    assert not torch.equal(build(1), build(2))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("tactical_mappo", "model_name_taken"),
        ("embedded", "model_name_taken"),
        ("owner/name", "model_name_invalid"),
        ("./here", "model_name_invalid"),
        ("", "model_name_invalid"),
    ],
)
def test_names_that_cannot_be_registered(name: str, code: str) -> None:
    before = dict(MODELS)
    with pytest.raises(ValueError, match=rf"models\.{code}\(name={name}\)"):
        register_model(name, ModelEntry(lambda: torch.nn.Linear(1, 1), adapter="standard"))
    assert before == MODELS
    assert (name in REGISTERED_MODELS) is (name == "tactical_mappo")
