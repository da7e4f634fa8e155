"""Which settings an evaluation uses, and which requests are refused."""

import pytest

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.core.errors import MissingPackageError
from infrastructure.evaluation import text_scores
from infrastructure.evaluation.request import (
    Request,
    refuse_flags_without_effect,
    unused_because,
)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("data.eval_path", "evaluation.data_is_evaluated()"),
        ("data.validation_split", "evaluation.nothing_held_out()"),
        ("model.lora_config", "evaluation.model_has_own_lora()"),
        ("model.lora_config.r", "evaluation.model_has_own_lora()"),
        ("model.embedded.num_layers", "evaluation.model_has_own_shape()"),
        ("model.embedded_more", None),
        ("model", None),
        ("data.path", None),
    ],
)
def test_a_setting_is_unused_with_all_that_is_below_it(key: str, reason: str | None) -> None:
    assert unused_because(key) == reason


@pytest.mark.parametrize(
    ("layer", "is_refused"),
    [
        *[(Layer.FLAG, True), (Layer.KEYWORD, True)],
        *[(Layer.FILE, False), (Layer.ENVIRONMENT, False)],
    ],
)
def test_each_flag_without_effect_is_named(layer: Layer, is_refused: bool) -> None:
    values = {
        **{"training.learning_rate": 0.5, "training.max_steps": 3, "model.lora_config.r": 4},
        **{"training.batch_size": 2, "data.max_length": 99, "price_per_hour": "2 EUR"},
    }
    source = Source(layer, "somewhere")
    config = DeploymentConfig().changed([GivenValue(k, v, source) for k, v in values.items()])
    if not is_refused:
        refuse_flags_without_effect(config)
        return
    with pytest.raises(ConfigurationError) as caught:
        refuse_flags_without_effect(config)
    trains = "evaluation.nothing_trained()"
    assert sorted(str(caught.value).splitlines()) == [
        f"evaluation.flag_no_effect(key={key}, reason={reason})"
        for key, reason in (
            ("model.lora_config", "evaluation.model_has_own_lora()"),
            ("model.lora_config.r", "evaluation.model_has_own_lora()"),
            *(("training.learning_rate", trains), ("training.max_steps", trains)),
        )
    ]


def test_a_request_names_measures_that_this_machine_can_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Request(measures=("loss", "exact_match"), max_tokens=1).max_tokens == 1
    with pytest.raises(ValueError, match=r"what=measure, name=f2, "):
        Request(measures=("loss", "f2"))
    with pytest.raises(ValueError, match=r"max_tokens_too_small\(max_tokens=-1\)"):
        Request(max_tokens=-1)

    def missing(name: str, *_: object) -> None:
        raise MissingPackageError("a package is missing")

    monkeypatch.setattr(text_scores, "refuse_missing", missing)
    Request(measures=("exact_match",))
    with pytest.raises(MissingPackageError):
        Request(measures=("exact_match", "f1"))
