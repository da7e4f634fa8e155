"""Every value of every choice in the configuration trains and goes on after a kill, or is refused.

The choices are those of the schema: a new one is in these tests by being declared.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.registries import OPTIMIZERS
from infrastructure.core.errors import MissingPackageError
from infrastructure.deployment.deploy_training import TrainingDeployment
from tests.faults.choices import (
    NUM_STEPS,
    ChildResult,
    Choice,
    Job,
    Row,
    Trainings,
    base_settings,
    every_choice,
    refusal,
    rows_of,
    together,
    write_data_of,
)
from tests.slow import slow

SOLVER = "quantum.solver"


@pytest.fixture(scope="module")
def trainings() -> Iterator[Trainings]:
    started = Trainings()
    yield started
    started.close()


def trained(
    trainings: Trainings, row: Row, folder: Path, llama: Path, *, kill: bool = True
) -> ChildResult:
    base = base_settings(folder)
    settings = together(base, row.settings)
    filled = {
        key: value.format(folder=folder, llama=llama) if isinstance(value, str) else value
        for key, value in settings.items()
    }
    lines = (folder / "rows.jsonl").read_text().splitlines()
    write_data_of(filled, [json.loads(line) for line in lines])
    return trainings.do(Job(str(folder), filled, kill))


def problem_of(result: ChildResult, *, kill: bool) -> str | None:
    """What is wrong with a training, or None."""
    if result.error is not None:
        return f"{result.error[0]}: {result.error[1]}"
    if result.was_killed != kill:
        return "it was not killed" if kill else "it was killed"
    if len(result.directories) != 1:
        return f"it made {len(result.directories)} runs"
    return None if result.step == NUM_STEPS else f"its last checkpoint is of step {result.step}"


def problems_of(
    rows: list[Row], trainings: Trainings, tmp_path: Path, llama: Path, *, kill: bool
) -> dict[str, str]:
    found = {}
    for number, row in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        problem = problem_of(trained(trainings, row, folder, llama, kill=kill), kill=kill)
        if problem is not None:
            found[" ".join(map(str, row.choices))] = problem
    return found


def trainable(*, quick: bool) -> list[Choice]:
    return [one for one in every_choice() if refusal(one) is None and one.is_slow != quick]


def test_the_choices_are_those_of_the_schema() -> None:
    found = {str(one) for one in every_choice()}
    assert {f'training.optimizer="{name}"' for name in OPTIMIZERS.built_in} - found == {
        'training.optimizer="adamw"'
    }
    assert {
        'training.metrics_sinks=["csv"]',
        "data.packing=false",
        "model.lora_config=true",
    } < found
    assert {'training.mixed_precision="bf16"', f'{SOLVER}="exact"'} < found


def test_every_choice_stands_by_itself_with_what_it_needs(tmp_path: Path) -> None:
    base = base_settings(tmp_path)
    alone = [*trainable(quick=True), *trainable(quick=False)]
    assert all(len(rows_of([one], base)) == 1 for one in alone)


def test_what_is_refused_is_refused_in_a_sentence_before_there_is_a_run(tmp_path: Path) -> None:
    base = base_settings(tmp_path)
    refused = [(one, sentence) for one in every_choice() if (sentence := refusal(one))]
    for choice, sentence in refused:
        settings = together(base, {**choice.needs, choice.key: choice.value})
        with pytest.raises((ValueError, MissingPackageError)) as caught:
            TrainingDeployment(DeploymentConfig(**settings), say=lambda line: None).run()
        assert sentence in str(caught.value), choice
        assert not list((tmp_path / "runs").glob("*")), choice
    assert refused


def test_every_choice_trains_and_goes_on_after_a_kill(
    trainings: Trainings, saved_llama: Path, tmp_path: Path
) -> None:
    """Many in one training; each optimizer, schedule, precision, strategy and sink is in one."""
    rows = rows_of(
        [one for one in trainable(quick=True) if one.key != SOLVER], base_settings(tmp_path)
    )
    problems = problems_of(rows, trainings, tmp_path, saved_llama, kill=True)
    assert not problems, "\n".join(f"{row}: {problem}" for row, problem in problems.items())


@slow
def test_every_sampler_answers_in_a_training(
    trainings: Trainings, saved_llama: Path, tmp_path: Path
) -> None:
    rows = rows_of(
        [one for one in trainable(quick=True) if one.key == SOLVER], base_settings(tmp_path)
    )
    for number, row in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        result = trained(trainings, row, folder, saved_llama, kill=False)
        assert problem_of(result, kill=False) is None, row.choices
        assert "answered" in result.quantum, row.choices


@slow
@pytest.mark.timeout(3600)
def test_every_choice_by_itself_goes_on_to_the_same_bits(
    trainings: Trainings, saved_llama: Path, tmp_path: Path
) -> None:
    wrong = {}
    for choice in [*trainable(quick=True), *trainable(quick=False)]:
        (row,) = rows_of([choice], base_settings(tmp_path))
        weights = []
        for kill in (False, True):
            folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            result = trained(trainings, row, folder, saved_llama, kill=kill)
            problem = problem_of(result, kill=kill)
            if problem is not None:
                wrong[str(choice)] = problem
            weights.append(result.weights)
        if len(set(weights)) > 1:
            wrong.setdefault(str(choice), "it went on to other weights")
    assert wrong == {}
