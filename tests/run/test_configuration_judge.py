"""The rules by which a run of a configuration is compared before it resumes."""

from typing import Any

import pytest

from infrastructure.core.features import models_of_features
from infrastructure.run.compatibility import Difference, Verdict
from infrastructure.run.configuration_judge import (
    ConfigurationJudge,
    accepted_name,
    canonical_name,
    shown_name,
)
from tests.run.test_compatibility import FACTS, changed, with_settings

judge = ConfigurationJudge()
RESULT, HARMLESS = Verdict.CHANGES_THE_RESULT, Verdict.HARMLESS
OTHER_MODELS = {*models_of_features()} - {*models_of_features(in_base=True)}


def with_numbers(settings: dict[str, object], resolved: dict[str, object]) -> dict[str, Any]:
    """Facts with these settings of the training, and the numbers that they resolved to."""
    return changed(
        settings={f"training.{name}": value for name, value in settings.items()},
        resolved={f"training.{name}": value for name, value in resolved.items()},
    )


@pytest.mark.parametrize(
    "name", ["learning_rate", "num_epochs", "batch_size", "gradient_accumulation"]
)
def test_a_number_that_was_open_is_compared_as_what_it_resolved_to(name: str) -> None:
    def differing(was: dict[str, Any], now: dict[str, Any]) -> list[tuple[object, ...]]:
        return [(d.name, d.was, d.current, d.verdict) for d in judge.differences(was, now)]

    given, left_open = with_numbers({name: 4}, {name: 4}), with_numbers({name: "auto"}, {name: 4})
    assert differing(given, left_open) == differing(left_open, given) == []
    other = with_numbers({name: 8}, {name: 8})
    assert differing(left_open, other) == [(name, 4, 8, RESULT)]
    without_numbers = with_numbers({name: 4}, {})  # a checkpoint of an older release
    assert differing(without_numbers, left_open) == differing(left_open, without_numbers) == []
    assert differing(without_numbers, other) == [(name, 4, 8, RESULT)]
    is_measured = name in ("batch_size", "gradient_accumulation")
    measured = with_numbers({name: "auto"}, {name: 8})
    assert differing(left_open, measured) == ([(name, 4, 8, RESULT)] if is_measured else [])


@pytest.mark.parametrize(
    ("key", "same_data", "same_base"),
    [
        ("data.path", HARMLESS, RESULT),
        ("data.chat_template", HARMLESS, RESULT),
        ("data.format", HARMLESS, RESULT),
        ("data.max_length", RESULT, RESULT),
        ("model.name", RESULT, HARMLESS),
        ("model.revision", RESULT, HARMLESS),
        ("training.multimodal.vision_tower", RESULT, HARMLESS),
        ("model.lora_config.alpha", RESULT, RESULT),
        *((key, RESULT, RESULT) for key in OTHER_MODELS),
    ],
)
def test_a_setting_whose_content_is_compared_may_be_called_otherwise(
    key: str, same_data: Verdict, same_base: Verdict
) -> None:
    def verdict(**more: object) -> Verdict:
        found = judge.differences(FACTS, {**with_settings(**{key: "other"}), **more})
        [difference] = [d for d in found if d.name == shown_name(key)]
        return difference.verdict

    assert verdict() is (HARMLESS if HARMLESS in (same_data, same_base) else RESULT)
    assert verdict(base_model="ef" * 32) is same_data
    assert verdict(data="ef" * 32) is same_base


def test_only_another_library_that_loads_the_model_is_a_difference() -> None:
    auto, plain, unsloth = (
        with_settings(**{"model.backend": name}) for name in ("auto", "transformers", "unsloth")
    )
    assert judge.differences(auto, plain) == judge.differences(plain, auto) == []
    [difference] = judge.differences(plain, unsloth)
    assert (difference.name, difference.was, difference.current) == (
        *("backend", "transformers", "unsloth"),
    )


@pytest.mark.parametrize("name", ["device", "deterministic", "world_size", "machine"])
def test_another_machine_never_changes_the_result(name: str) -> None:
    [difference] = judge.differences(FACTS, changed(**{name: "other"}))
    expected = HARMLESS if name == "machine" else Verdict.ROUNDS_OTHERWISE
    assert (difference.name, difference.verdict, difference.cause) == (name, expected, "")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("training.learning_rate", "learning_rate"),
        ("--learning-rate", "learning_rate"),
        ("learning_rate", "learning_rate"),
        ("model.name", "model.name"),
        ("--model", "model.name"),
        ("data.path", "data.path"),
        ("data.format", "data.format"),
        ("model.lora_config.r", "model.lora_config.r"),
        *((name, name) for name in ("data", "base_model", "precision", "device", "code")),
        *((name, name) for name in ("driver", "deterministic", "world_size", "num_threads")),
        *((name, name) for name in ("attention", "held_out_data", "tokenizer", "objects")),
        *((name, name) for name in ("python", "numpy", "torch", "trl")),
    ],
)
def test_a_difference_has_one_name(given: str, name: str) -> None:
    assert canonical_name(given) == accepted_name(given) == name


def test_a_name_that_is_like_none_gets_the_names_of_facts() -> None:
    with pytest.raises(ValueError) as raised:
        canonical_name("zzzz-qqqq")
    start = "run.unknown_accepted_name(name=zzzz-qqqq, hint=run.names_to_accept(names=data, "
    assert str(raised.value).startswith(start)
    assert accepted_name("zzzz-qqqq") == "zzzz-qqqq"
    for name in ("output_dir", "backup.place"):  # they change no result
        with pytest.raises(ValueError, match=r"run\.unknown_accepted_name"):
            canonical_name(name)


def test_a_part_that_is_used_twice_is_shown_once() -> None:
    def using(sha256: str, *groups: str) -> dict[str, Any]:
        part = {"address": "turns:X", "file": "turns.py", "sha256": sha256}
        return changed(code={group: {"turns:X": part} for group in groups})

    both = "temper.strategies", "temper.losses"
    [difference] = judge.differences(using("ab", *both), using("cd", *both))
    assert (difference.name, difference.verdict) == ("code", RESULT)
    assert difference.text == "run.code_changed(parts=turns:X (turns.py))"
    assert judge.differences(using("ab", both[0]), using("cd", both[1])) == []
    assert judge.differences(using("ab", both[0]), changed()) == []


def test_only_a_changed_precision_is_brought_back_by_a_flag() -> None:
    refused = [Difference(name, was, "new", RESULT) for name, was in (("data", "a"), ("seed", 1))]
    new_run = "run.start_new_run_by_command()"
    assert judge.other_remedies(refused) == [new_run]
    refused.append(Difference("precision", "fp16", "fp32", Verdict.NEEDS_A_NEW_RUN))
    flag = "run.restore_precision_by_flag(flag=training.mixed_precision=fp16)"
    assert judge.other_remedies(refused) == [flag, new_run]


@pytest.mark.parametrize(
    ("was", "now", "verdict"),
    [
        ("fp32", "bf16", RESULT),
        ("fp16", "bf16", Verdict.NEEDS_A_NEW_RUN),
        ("bf16", "fp16", Verdict.NEEDS_A_NEW_RUN),
    ],
)
def test_a_checkpoint_has_a_gradient_scaler_or_none(was: str, now: str, verdict: Verdict) -> None:
    [difference] = judge.differences(changed(precision=was), changed(precision=now))
    assert (difference.was, difference.current, difference.verdict) == (was, now, verdict)
