"""What is told of a run in one sentence."""

import os
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from infrastructure.core.files import write_json
from infrastructure.monitoring.records.live_run import LiveRun
from infrastructure.monitoring.records.run_reader import RunFacts
from infrastructure.monitoring.records.status_text import (
    alert_words,
    error_words,
    is_askable,
    progress_words,
    question_command,
    safety_words,
    state_words,
)
from tests.monitoring.written_run import add, step_record, write_run

CONFIRMED = "monitoring.backup_step_confirmed(step=120, place=drive:x)"
AT_RISK = "monitoring.work_at_risk(duration=1 min 30 s)"
AT_RISK_NONE = "monitoring.work_at_risk(duration=0.0 s)"
NEWER = "monitoring.newest_step_here_only(step=130)"
SAFE = {"place": "drive:x", "confirmed_step": 120, "saved_at": 1000.0}


def facts(copies: dict[str, Any], **summary: Any) -> RunFacts:
    return RunFacts(Path(), {"checkpoints/backup.json": copies, "summary.json": summary})


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ({}, "monitoring.checkpoints_not_backed_up()"),
        ({"place": "drive:x"}, "monitoring.backup_nothing_confirmed(place=drive:x)"),
        (SAFE, CONFIRMED + AT_RISK),
        ({**SAFE, "error": "the disk is full"}, f"{CONFIRMED}{AT_RISK}; the disk is full"),
        ({**SAFE, "saved_at": 1e9, "newest_step": 130}, f"{CONFIRMED}{AT_RISK_NONE}"),
        ({**SAFE, "saved_at": None, "newest_step": 130}, f"{CONFIRMED}{NEWER}"),
        ({**SAFE, "saved_at": None, "newest_step": 120}, CONFIRMED),
        ({**SAFE, "error": "b", "problem": "a"}, f"{CONFIRMED}{AT_RISK}; NOT SAFE YET: a"),
    ],
)
def test_what_would_be_lost_now_is_reported(copies: dict[str, Any], message: str) -> None:
    assert safety_words(facts(copies), now=1090.0) == message


def test_for_a_trainers_run_the_setting_of_its_script_is_named() -> None:
    run = RunFacts(Path(), {"run.json": {"trainer": {}}})
    words = safety_words(run, now=1090.0)
    assert words == "monitoring.trainer_not_backed_up()"


def words_of_one_that_nobody_trains(copies: dict[str, Any], **summary: Any) -> str:
    return safety_words(facts(copies, **summary), now=None)


def test_a_run_that_has_ended_loses_nothing_more() -> None:
    words = words_of_one_that_nobody_trains(SAFE, status="finished")
    assert words == CONFIRMED
    problem = {**SAFE, "problem": "the place is full"}
    words = words_of_one_that_nobody_trains(SAFE, status="finished", backup=problem)
    assert words.endswith("; NOT SAFE YET: the place is full")


def test_a_run_that_was_killed_loses_what_is_not_copied_and_no_more_with_time() -> None:
    assert words_of_one_that_nobody_trains(SAFE) == CONFIRMED
    newer = words_of_one_that_nobody_trains({**SAFE, "newest_step": 130})
    assert newer == f"{CONFIRMED}monitoring.newest_step_here_only(step=130)"


def test_a_question_to_a_model_of_rows_with_a_context_has_one() -> None:
    assert question_command("m", has_context=True) == "temper ask m --context TEXT"
    assert question_command("m", "s", has_context=True) == "temper ask m --context TEXT --system s"
    assert question_command("m", "s" * 300) == f"temper ask m --system {'s' * 300}"
    assert question_command("m", "s" * 301) == "temper ask m --system SYSTEM_PROMPT"


@pytest.mark.parametrize(
    ("files", "can_answer"),
    [
        ({}, False),
        ({"config.json": {}}, False),
        ({"tokenizer_config.json": {}}, True),
        ({"adapter_config.json": {"task_type": "CAUSAL_LM"}}, True),
        ({"tokenizer_config.json": {}, "adapter_config.json": {"task_type": "SEQ_CLS"}}, False),
        (
            {
                "tokenizer_config.json": {},
                "config.json": {"architectures": ["QwenForSequenceClassification"]},
            },
            False,
        ),
    ],
)
def test_a_model_that_generates_text_is_askable(
    files: dict[str, Any], can_answer: bool, tmp_path: Path
) -> None:
    for name, content in files.items():
        write_json(tmp_path / name, content)
    assert is_askable(tmp_path) is can_answer


def test_errors_and_alerts_are_one_sentence_each() -> None:
    error = {"step": 7, "kind": "spike", "action": "went back", "message": "loss 9"}
    assert error_words(error) == "step 7: spike; went back (loss 9)"
    alert = {"step": 7, "rule": "hot", "message": "91 °C"}
    assert alert_words(alert) == "step 7: 91 °C"
    assert alert_words({**alert, "ended_at": 9.0}) == "step 7: 91 °C (over)"
    assert [error_words({}), alert_words({})] == ["step ?: error", "an alert"]
    assert [error_words({"step": 0}), alert_words({"rule": "hot", "step": 0})] == [
        "step 0: error",
        "step 0: hot",
    ]
    long = {"message": "x" * 301}
    assert alert_words(long).endswith("x … (1 more characters)")
    assert error_words(long).endswith("… (17 more characters)")


@pytest.mark.parametrize(
    "system", ["You are the town's desk.", 'It\'s "so"', "It's $HOME", "It's `so`\\", "plain"]
)
def test_a_shell_reads_the_question_that_is_shown_with_its_system_prompt(system: str) -> None:
    command = question_command("runs/my model", system)
    arguments = ["bash", "-c", command.replace("temper ask", "printf '%s\\n'", 1)]
    out = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["runs/my model", "--system", system]


def test_of_several_resumes_the_last_one_is_described(tmp_path: Path) -> None:
    resumes = [
        {"step": 3, "was_killed": True, "place": "drive:x"},
        {"step": 7, "was_killed": False},
    ]
    with closing(LiveRun(write_run(tmp_path, went_on=resumes))) as run:
        run.refresh()
        words = state_words(run)
    last = "cause=monitoring.a_stop(), start=monitoring.resumed_from_step(step=7)"
    assert f"times=monitoring.times_last(times=2), {last}" in words
    assert "monitoring.restored_from(places=drive:x)" in words


@pytest.mark.parametrize(
    ("summary", "holder", "words"),
    [
        ({"status": "finished"}, "", "Finished at step 1,250."),
        (
            {"status": "stopped", "seconds": 75, "reason": "Ctrl-C."},
            "",
            "Stopped before the end at step 1,250, after 1 min 15 s: Ctrl-C.",
        ),
        ({"status": "failed"}, "", "Failed at step 1,250."),
        (
            {"reason": "of an earlier session"},
            "process 7 on there ended",
            "Interrupted at step 1,250: monitoring.training_process_gone().",
        ),
        ({}, "process 7 on there", "Training (process 7 on there)monitoring.run_is_silent()."),
    ],
)
def test_the_state_is_one_sentence_with_the_reason(
    summary: dict[str, Any], holder: str, words: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path, **summary)
    (run / "trained_by").write_text(holder)
    add(run, step_record(1250, seconds=0))
    os.utime(run / "metrics.jsonl", (0, 0))
    with closing(LiveRun(run)) as shown:
        assert state_words(shown) == words
        assert progress_words(shown) == "step 1,250 of 40 · 100%"
