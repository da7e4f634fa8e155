"""Each planted fault is seen by the check that is made for it; none fires on a healthy model."""

import re
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.testing.parameter_checks import check_learning
from infrastructure.testing.preflight import INTEGRATION, UNIT, run_check
from infrastructure.testing.results import CheckResult, lines_of
from infrastructure.testing.subject import Subject
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from tests.slow import slow_but
from tests.testing.check_models import (
    MODELS,
    all_checks,
    save_model_of,
    settings_of,
    subject_of,
    trainer_of,
)
from tests.testing.planted_faults import FAULTS, FINDINGS, Fault

LORA = {"lora_config": {"r": 2, "dropout": 0.1}}
CHECKS = {"end of answers": "ends", "prompts": "template", "start of LoRA": "start"}
CHECKS |= {"save and resume": "resume", "saved model": "saved_model"}


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model of each architecture."""
    folder = tmp_path_factory.mktemp("architectures")
    for architecture in MODELS:
        save_model_of(architecture, folder / architecture)
    return folder


def faulty(config: DeploymentConfig, fault: Fault) -> EnhancedTrainer:
    """Planted in every trainer that is made: whoever goes on has the same mistake."""
    trainer = trainer_of(config)
    trainer.initialize_data()
    fault.plant(trainer)
    return trainer


ALIKE = (  # to others that the same check sees in the same way; slow tests
    *("only the last micro-batch counts", "nothing is learnt", "a leaky model is packed"),
    *("a hidden momentum", "state outside of the checkpoint"),
)


@pytest.mark.parametrize(
    "fault",
    slow_but([fault for fault in FAULTS if fault.name not in ALIKE], FAULTS),
    ids=lambda fault: fault.name,
)
def test_a_planted_fault_is_seen(fault: Fault, model_folders: Path, tmp_path: Path) -> None:
    model = {"name": str(model_folders / fault.architecture), **(LORA if fault.lora else {})}
    config = DeploymentConfig(**settings_of(tmp_path, model, mixed_precision="fp32"))
    subject = Subject(faulty(config, fault), lambda: faulty(config, fault))
    check = next(
        c
        for c in (*UNIT, *INTEGRATION)
        if c.__name__ == "check_" + CHECKS.get(fault.seen_by, fault.seen_by)
    )
    result = run_check(check, subject, "unit")
    assert (result.name, result.status) == (fault.seen_by, "fail"), result
    remedy = result.remedy.removeprefix("testing.").removesuffix("()")
    finding = described(result).removeprefix("testing.") + (f" → {remedy}" if remedy else "")
    assert finding == FINDINGS[fault.name]


NUMBER = re.compile(r"\d+(?:\.\d+)?e-?\d+|\d+\.\d+")


def described(result: CheckResult) -> str:
    """The text of a result with … for what is measured, which stands in its numbers, too."""
    values = {float(value) for value in NUMBER.findall(result.text)}
    measured = {*result.numbers.values(), *(100 * value for value in result.numbers.values())}
    assert values <= measured
    return NUMBER.sub("…", result.text)


def test_what_rounding_does_to_a_loss_is_not_learning(model_folders: Path, tmp_path: Path) -> None:
    [fault] = [one for one in FAULTS if one.name == "uphill"]
    model = {"name": str(model_folders / fault.architecture)}
    for learning_rate, healthy in ((2e-5, ["pass"]), (1e-7, ["pass", "warn"])):
        settings = {"mixed_precision": "bf16", "learning_rate": learning_rate}
        config = DeploymentConfig(**settings_of(tmp_path, model, **settings))
        assert check_learning(Subject(trainer_of(config))).status in healthy
        assert check_learning(Subject(faulty(config, fault))).status in ("fail", "warn")


LOSS_NUMBERS = ["loss", "expected_loss", "relative_difference"]
OF_LLAMA_WITH_LORA = {
    "weights": ("unit", "testing.weights_are_finite(num_tensors=49)", []),
    "labels": (
        "unit",
        "testing.trained_token_share(percent=…, num_examples=32)",
        ["learnt_share", "num_examples"],
    ),
    "end of answers": (
        "unit",
        "testing.answer_ends_trained(num_answers=32, tokens='</s>')",
        ["ended_share"],
    ),
    "answers": (
        "unit",
        "testing.answers_trained(num_answers=32)",
        ["num_answers", "num_without_end"],
    ),
    "prompts": (
        "unit",
        "testing.prompts_match(num_prompts=3)",
        ["num_prompts"],
    ),
    "loss": ("unit", "testing.loss_matches_outputs(loss=…)", LOSS_NUMBERS),
    "causality": ("unit", "testing.attention_is_causal()", ["leak"]),
    "isolation": (
        "unit",
        "testing.examples_are_isolated(num_examples=4, container=one row)",
        ["relative_difference", "leak"],
    ),
    "accumulation": (
        "unit",
        "testing.micro_batches_keep_gradient(num_examples=4)",
        ["relative_difference", "noise"],
    ),
    "trainable": (
        "unit",
        "testing.trained_share(trained=testing.only_lora_trains(), percent=…)",
        ["trained_share", "num_trained"],
    ),
    "start of LoRA": ("unit", "testing.new_lora_changes_nothing()", ["relative_difference"]),
    "optimizer": ("unit", "testing.optimizer_is_complete(optimizer=AdamW, num_tensors=28)", []),
    "steps": (
        "integration",
        "testing.steps_changed_tensors(num_steps=2, num_changed=28, num_unchanged=21)",
        ["num_moved", "num_trained"],
    ),
    "learning": (
        "integration",
        "testing.loss_change(before=…, after=…, num_steps=4, rate=…)",
        ["loss_before", "loss_after", "learning_rate"],
    ),
    "save and resume": (
        "integration",
        "testing.resumed_run_matches(step=2, precision=testing.bit_for_bit())",
        ["num_compared", "relative_difference"],
    ),
    "saved model": ("integration", "testing.saved_model_matches()", ["relative_difference"]),
}
HEALTHY = [(architecture, lora) for architecture in MODELS for lora in (False, True)]
HEALTHY.remove(("qwen3_moe", True))  # PEFT's own limits with experts


@pytest.mark.parametrize(
    ("architecture", "lora"), slow_but([("llama", True), ("gpt2", True)], HEALTHY)
)
def test_no_check_fires_on_a_healthy_model(
    architecture: str, lora: bool, model_folders: Path, tmp_path: Path
) -> None:
    model = {"name": str(model_folders / architecture), **(LORA if lora else {})}
    config = DeploymentConfig(**settings_of(tmp_path, model))
    results = all_checks(subject_of(config))
    if architecture == "llama" and lora:
        found = {r.name: (r.group, described(r), [*r.numbers]) for r in results}
        assert found == OF_LLAMA_WITH_LORA
    bad = [result for result in results if result.status in ("warn", "fail")]
    assert bad == [], "\n".join(lines_of(bad))
    skipped = {result.name for result in results if result.status == "skipped"}
    assert skipped <= ({"accumulation"} if architecture == "qwen3_moe" else set()) | (
        set() if lora else {"start of LoRA"}
    )
