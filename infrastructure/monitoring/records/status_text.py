"""Texts on the state of a run, the same in the terminal and on the pages."""

import shlex
from pathlib import Path

from infrastructure.core.json_text import JsonObject, json_of
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import clip, format_duration, format_share
from infrastructure.monitoring.drawing.metrics_file import Record
from infrastructure.monitoring.records.live_run import LiveRun
from infrastructure.monitoring.records.run_list import is_of_a_script
from infrastructure.monitoring.records.run_reader import RunFacts, brought_back_from, continuations

MAX_CHARACTERS, MAX_STATE_CHARACTERS = 300, 600
STATE_WORDS = {
    "starting": "Preparing",
    "running": "Training",
    "interrupted": "Interrupted",
    "finished": "Finished",
    "stopped": "Stopped before the end",
    "failed": "Failed",
}


def question_command(model: str, system: object = None, *, has_context: bool = False) -> str:
    """Return the command that prompts a trained model in the format of its training data.

    Args:
        system: the system prompt of all rows, if they share one.
        has_context: whether the rows contain the context of their questions.
    """
    command = f"temper ask {shlex.quote(model)}{' --context TEXT' if has_context else ''}"
    if not isinstance(system, str):
        return command
    if len(system) > MAX_CHARACTERS:
        return f"{command} --system SYSTEM_PROMPT"
    return f"{command} --system {shlex.quote(system)}"


def is_askable(model: Path) -> bool:
    """Return whether the model in a folder has a tokenizer and generates text, unlike a reward
    model.
    """
    readable = ("tokenizer_config.json", "adapter_config.json")  # a LoRA may use its base's
    if not any((model / name).is_file() for name in readable):
        return False
    config, lora = json_of(model / "config.json"), json_of(model / "adapter_config.json")
    is_score = "SequenceClassification" in str(config.get("architectures"))
    return not is_score and lora.get("task_type") != "SEQ_CLS"


def state_words(run: LiveRun) -> str:
    """Describe the state of a run: `Finished at step 40`, with the duration and the reason for the
    end.

    For a resumed run, this includes the time of all sessions, how often it was resumed, and why.
    """
    text, went_on = STATE_WORDS[run.state], continuations(run.facts)
    if not run.has_ended:
        text += f" ({run.trainer})" if run.trainer is not None else ""
        text += phrase("monitoring.run_is_silent") if run.is_silent else ""
        return clip(text + _went_on_words(went_on), MAX_STATE_CHARACTERS) + "."
    text += f" at step {run.step:,}" if run.step is not None else ""
    text += _duration_words(run, is_first=not went_on)
    reason = _reason(run)
    text += f": {reason}" if reason else ""
    text += _went_on_words(went_on)
    return clip(text, MAX_STATE_CHARACTERS).rstrip(".") + "."


def _reason(run: LiveRun) -> object:
    """Return the reason why a run has ended, if it is known."""
    if run.state != "interrupted":
        return run.facts.summary.get("reason")
    if place := brought_back_from(run.facts.run):
        return phrase("monitoring.restored_not_resumed", source=place)
    return phrase("monitoring.training_process_gone")


def _duration_words(run: LiveRun, is_first: bool) -> str:
    """Describe how long training took.

    For a run of several sessions, this is the time of all steps, except for steps that were lost
    when the run was killed.
    """
    seconds = run.facts.summary.get("seconds")
    if not is_first and run.seconds_trained:
        return phrase("monitoring.total_step_time", duration=format_duration(run.seconds_trained))
    if not isinstance(seconds, int | float):
        return ""
    duration = format_duration(seconds)
    return (
        f", after {duration}"
        if is_first
        else phrase("monitoring.after_last_resume", duration=duration)
    )


def _went_on_words(continuations: list[JsonObject]) -> str:
    """Describe how often a run was resumed, or return "" if it never was.

    Example: `; resumed 2 times, last after a kill, from the checkpoint of step 60; restored from
    /mnt/disk`.
    """
    if not continuations:
        return ""
    newest, times = continuations[-1], len(continuations)
    cause = phrase("monitoring.a_kill" if newest.get("was_killed") else "monitoring.a_stop")
    often = (
        phrase("monitoring.once") if times == 1 else phrase("monitoring.times_last", times=times)
    )
    places = dict.fromkeys(str(each["place"]) for each in continuations if "place" in each)
    back = phrase("monitoring.restored_from", places=", ".join(places)) if places else ""
    step = newest.get("step")
    start = phrase("monitoring.resumed_from_step", step=step) if step else "the first step"
    return phrase("monitoring.resumed_times", times=often, cause=cause, start=start, restored=back)


def progress_words(run: LiveRun) -> str:
    """Describe the progress as far as it is known: `step 120 of 500 · 24.0%`."""
    if run.step is None:
        return phrase("monitoring.no_step_yet")
    text = f"step {run.step:,}"
    if run.total_steps is not None and run.share_done is not None:
        text += f" of {run.total_steps:,} · {format_share(run.share_done)}"
    return text


def time_words(run: LiveRun) -> str:
    """Describe the times: `about 5.0 s left · steps took 15 s`."""
    left = run.seconds_left if run.state == "running" else None
    trained = run.seconds_trained
    parts = [phrase("monitoring.time_left", duration=format_duration(left))] if left else []
    steps = [phrase("monitoring.steps_took", duration=format_duration(trained))] if trained else []
    return " · ".join([*parts, *steps])


def safety_words(run: RunFacts, now: float | None) -> str:
    """Describe the confirmed backup, with its age at the Unix time `now`.

    Args:
        now: None if no process trains the run, so that no work since the backup could be lost.
    """
    known = run.copies
    if not known["place"]:
        if is_of_a_script(run.run):
            return phrase("monitoring.trainer_not_backed_up")
        return phrase("monitoring.checkpoints_not_backed_up")
    place, step, saved_at = (known.get(key) for key in ("place", "confirmed_step", "saved_at"))
    newest = known.get("newest_step")
    if step is None:
        text = phrase("monitoring.backup_nothing_confirmed", place=place)
    else:
        text = phrase("monitoring.backup_step_confirmed", step=step, place=place)
        if isinstance(saved_at, int | float) and now is not None:
            text += phrase(
                "monitoring.work_at_risk", duration=format_duration(max(0.0, now - saved_at))
            )
        elif isinstance(newest, int) and newest != step:
            text += phrase("monitoring.newest_step_here_only", step=newest)
    if problem := known.get("problem"):
        text += f"; NOT SAFE YET: {problem}"
    elif error := known.get("error"):
        text += f"; {error}"
    return clip(text, MAX_CHARACTERS)


def error_words(record: Record) -> str:
    """Describe an error from which the run recovered.

    Example: `step 12: spike; went back to step 10 (message)`.
    """
    text = f"step {record.get('step', '?')}: {record.get('kind', 'error')}"
    if action := record.get("action"):
        text += f"; {action}"
    if message := record.get("message"):
        text += f" ({message})"
    return clip(text, MAX_CHARACTERS)


def alert_words(record: Record) -> str:
    """Describe an alert of the monitor: `step 12: GPU 0: 91 °C, more than 85 °C (over)`."""
    text = str(record.get("message") or record.get("rule") or "an alert")
    if record.get("step") is not None:
        text = f"step {record['step']}: {text}"
    return clip(text, MAX_CHARACTERS) + (" (over)" if record.get("ended_at") else "")
