"""What the numbers at the end of a run suggest."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.backup.format.store import Store
from infrastructure.run.advice import advice_at_end
from infrastructure.run.directory import RunDirectory
from tests.deployment.runs import deploy, small_config


def suggested(run: Path, before: float | None, after: float | None, **more: Any) -> str:
    given = {"num_steps": 100, "num_epochs": 2, "best_metric": "loss"} | more
    numbers = [{} if loss is None else {"eval_loss": loss} for loss in (before, after)]
    lines = advice_at_end(RunDirectory(run), before=numbers[0], after=numbers[1], **given)
    return " | ".join(f"{line['text']}: {line['command']}" for line in lines)


def test_a_run_that_has_overfitted_names_the_better_step(tmp_path: Path) -> None:
    """Planted: the held-out rows contradict the others."""
    rows = {"rows": "yes, yes, yes", "held_out": "no, no, no"}
    for name, answer in rows.items():
        lines_of_rows = (
            json.dumps({"prompt": f"Is {n} so?", "completion": answer}) for n in range(24)
        )
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines_of_rows))
    config = small_config(tmp_path, validation_frequency=4, learning_rate=0.02, num_epochs=4)
    config.data.eval_path = str(tmp_path / "held_out.jsonl")
    run, lines = deploy(config)
    [line] = [line for line in lines if "run.advice_earlier_step_better" in line]
    assert line == lines[-1]
    assert f"temper export {run}@best FOLDER" in line
    assert "@best FOLDER" in (run / "report.html").read_text()


def test_a_run_whose_answers_are_all_wrong_ends_with_advice(tmp_path: Path) -> None:
    config = small_config(tmp_path, num_epochs=4, learning_rate=0.003, validation_prompts=4)
    _, lines = deploy(config)
    assert lines[-1].startswith("run.advice_no_exact_answer")


def test_little_that_was_learnt_is_named(tmp_path: Path) -> None:
    assert suggested(tmp_path, 4.0, 2.0) == ""
    assert suggested(tmp_path, None, None) == ""
    assert suggested(tmp_path, 4.0, 2.0, num_steps=12) == (
        "run.advice_few_steps(count=12): run.advice_number_of_epochs(epochs=10)"
    )
    few = suggested(tmp_path, 4.0, 2.0, num_steps=12, is_cut_short=True)
    assert few.endswith(": run.advice_train_twice_as_long(steps=60)")
    assert suggested(tmp_path, 4.0, 2.0, num_epochs=0) == ""
    assert suggested(tmp_path, 4.0, 2.0, num_steps=60, num_epochs=0, is_cut_short=True) == (
        "run.advice_less_than_one_epoch(count=60): run.advice_raise_max_steps()"
    )
    assert suggested(tmp_path, 4.0, 2.0, is_cut_short=True) == ""
    assert suggested(tmp_path, 4.0, 3.96) == (
        "run.held_out_loss_barely_fell(was=4, now=3.960): run.advice_number_of_epochs(epochs=4)"
    )
    rose = suggested(tmp_path, 4.0, 5.0)
    assert "run.held_out_loss_rose(before=4, after=5)" in rose
    assert rose.startswith("run.advice_learn_more_slowly(")
    assert rose.endswith(": run.lower_learning_rate()")
    for now, was, shown in (
        (0.6932, "0.6931", "0.6932"),
        (0.693102, "0.693100", "0.693102"),
        (0.69310003, "0.69310000", "0.69310003"),
    ):
        assert suggested(tmp_path, 0.6931, now) == (
            f"run.held_out_loss_rose_slightly(was={was}, now={shown}): run.another_learning_rate()"
        )


def test_more_of_the_same_is_no_advice_where_a_lora_freezes_new_weights(tmp_path: Path) -> None:
    advice = "run.advice_train_new_weights()"
    for after, num_steps in ((2.0, 12), (3.99, 100)):
        line = suggested(tmp_path, 4.0, after, num_steps=num_steps, freezes_new_weights=True)
        assert line.endswith(advice)


def test_a_short_training_without_a_right_answer_is_named(tmp_path: Path) -> None:
    def lines_of(num_steps: int, share: float, **more: Any) -> list[str]:
        after = {"eval_loss": 2.0, "exact_match": {"all": share, "sums": share}}
        run, given = RunDirectory(tmp_path), {"num_epochs": 2, "before": {"eval_loss": 4.0}} | more
        advice = advice_at_end(run, "loss", num_steps, after=after, **given)
        return [f"{line['text']}: {line['command']}" for line in advice]

    right = "run.advice_no_exact_answer(count=60): run.advice_number_of_epochs(epochs=4)"
    assert lines_of(60, 0.0) == [right]
    assert lines_of(60, 0.01) == lines_of(200, 0.0) == []


@pytest.mark.parametrize(
    ("score", "is_named"), [(3.0, True), (3.92, True), (3.9201, False), (None, False)]
)
def test_only_a_loss_that_is_clearly_lower_counts(
    tmp_path: Path, score: float | None, is_named: bool
) -> None:
    Store(tmp_path / "checkpoints").commit({}, {}, step=40, score=score)
    text = suggested(tmp_path, 9.0, 4.0)
    best = "3" if score == 3.0 else "3.920"
    better = f"run.advice_earlier_step_better(step=40, metric=loss, best={best}, last=4)"
    assert (better in text) == is_named
    assert suggested(tmp_path, 9.0, 4.0, best_metric="exact_match") == ""
    assert suggested(tmp_path, 9.0, 4.0, num_steps=40) == ""  # it is the end itself
    Store(tmp_path / "checkpoints").commit({}, {}, step=100, score=9.0)
    assert suggested(tmp_path, 9.0, None) == "", "the loss of the end was not measured"


def test_the_command_names_the_run_as_a_shell_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, quoted in (("a b", "'a b'"), ("runs/c", "runs/c")):
        Store(tmp_path / name / "checkpoints").commit({}, {}, step=40, score=1.0)
        text = suggested(tmp_path / name, 9.0, 4.0)
        assert text.endswith(f": temper export {quoted}@best FOLDER")
    monkeypatch.chdir(tmp_path / "runs")
    assert f": temper export '{tmp_path}/a b'@best" in suggested(tmp_path / "a b", 9.0, 4.0)


@pytest.mark.parametrize(("last", "is_named"), [(-0.5, True), (-0.895, False), (None, False)])
def test_the_best_by_another_measure_is_named(
    tmp_path: Path, last: float | None, is_named: bool
) -> None:
    """Scores are lower where they are better."""
    store = Store(tmp_path / "checkpoints")
    store.commit({}, {}, step=40, score=-0.9)
    store.commit({}, {}, step=100, score=last)
    text = suggested(tmp_path, 9.0, 4.0, best_metric="exact_match", best_is_greater=True)
    better = "run.advice_earlier_step_better(step=40, metric=exact match, best=0.9000, last=0.5000)"
    assert text.startswith(better) if is_named else text == ""


def test_a_number_below_zero_keeps_its_sign(tmp_path: Path) -> None:
    """A score is the number, or its negative where more is better."""
    store = Store(tmp_path / "checkpoints")
    for step, score in ((40, 0.5), (100, 2.0)):
        store.commit({}, {}, step=step, score=score)
    for is_greater, numbers in ((True, "best=-0.5000, last=-2"), (False, "best=0.5000, last=2")):
        text = suggested(tmp_path, 9.0, 4.0, best_metric="my:own", best_is_greater=is_greater)
        assert f"run.advice_earlier_step_better(step=40, metric=own, {numbers})" in text


def test_the_numbers_from_which_advice_is_given(tmp_path: Path) -> None:
    for now, advice in (
        (4.08, "run.held_out_loss_rose_slightly("),
        (4.0801, "run.advice_learn_more_slowly("),
        (4.0, "run.held_out_loss_barely_fell("),
        (3.9201, "run.held_out_loss_barely_fell("),
        (3.92, ""),
    ):
        assert suggested(tmp_path, 4.0, now).partition("(")[0] == advice.partition("(")[0], now
    assert suggested(tmp_path, 0.0, 1.0) == ""
    for num_steps, is_few in ((19, True), (20, False)):
        assert ("run.advice_few_steps" in suggested(tmp_path, 4.0, 2.0, num_steps=num_steps)) is (
            is_few
        )


@pytest.mark.parametrize(
    ("num_steps", "num_epochs", "is_cut_short", "more"),
    [
        (12, 0, False, "run.advice_more_epochs()"),
        (0, 2, False, "run.advice_more_epochs()"),
        (7, 1, False, "run.advice_number_of_epochs(epochs=9)"),  # enough for 60 steps
        (19, 3, False, "run.advice_number_of_epochs(epochs=12)"),
        (100, 3, False, "run.advice_number_of_epochs(epochs=6)"),  # twice as many
        (100, 2, True, "run.advice_train_twice_as_long(steps=200)"),
        (25, 1, True, "run.advice_train_twice_as_long(steps=60)"),
    ],
)
def test_how_much_longer_depends_on_how_long_it_was(
    num_steps: int, num_epochs: int, is_cut_short: bool, more: str, tmp_path: Path
) -> None:
    given = {"num_steps": num_steps, "num_epochs": num_epochs, "is_cut_short": is_cut_short}
    assert suggested(tmp_path, 4.0, 3.99, **given).endswith(f": {more}")
