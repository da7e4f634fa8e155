"""What is told of a run in one sentence, the same in the terminal and on the page."""

import shlex
from pathlib import Path

from infrastructure.core.hub import json_of
from infrastructure.core.json_text import JsonObject
from infrastructure.monitoring.drawing.formatting import clip, format_duration, format_share
from infrastructure.monitoring.drawing.metrics_file import Record
from infrastructure.monitoring.records.live_run import LiveRun
from infrastructure.monitoring.records.run_reader import RunFacts, objects_in

HERE_ONLY = "Checkpoints lie on this machine only; backup.place copies them elsewhere"
MAX_CHARACTERS, MAX_STATE_CHARACTERS = 300, 600
STATE_WORDS = {
    "starting": "Being prepared",
    "running": "Being trained",
    "interrupted": "Broken off",
    "finished": "Finished",
    "stopped": "Stopped before the end",
    "failed": "Failed",
}


def question_command(model: str, system: object = None) -> str:
    """What is typed to ask a trained model, as its rows were written.

    Args:
        system: the system prompt of all of them, if they share one.
    """
    command = f"temper ask {shlex.quote(model)}"
    if not isinstance(system, str):
        return command
    shown = shlex.quote(system) if len(system) <= MAX_CHARACTERS else "SYSTEM_PROMPT"
    return f"{command} --system {shown}"


def writes_text(model: Path) -> bool:
    """Whether one can ask the model in a folder: a reward model gives a score."""
    config, lora = json_of(model / "config.json"), json_of(model / "adapter_config.json")
    is_score = "SequenceClassification" in str(config.get("architectures"))
    return not is_score and lora.get("task_type") != "SEQ_CLS"


def state_words(run: LiveRun) -> str:
    """How it stands: `Finished at step 40`, with how long it took and why it ended."""
    text = STATE_WORDS[run.state]
    if not run.has_ended:
        text += f" ({run.trainer})" if run.trainer is not None else ""
        text += "; nothing new was written for long" if run.is_silent else ""
        return f"{text}."
    summary = run.facts.summary
    seconds, reason = summary.get("seconds"), summary.get("reason")
    text += f" at step {run.step:,}" if run.step is not None else ""
    if isinstance(seconds, int | float):
        went_on = objects_in(summary.get("went_on"))
        duration = format_duration(seconds)
        text += f", {duration} after it last went on" if went_on else f", after {duration}"
    if run.state == "interrupted":
        reason = "the process that trained it is gone"
    text += f": {reason}" if reason else ""
    text += _went_on_words(objects_in(summary.get("went_on")))
    return clip(text, MAX_STATE_CHARACTERS).rstrip(".") + "."


def _went_on_words(continuations: list[JsonObject]) -> str:
    """`; went on after a kill at step 60`: the newest, and how many there were before."""
    if not continuations:
        return ""
    newest = continuations[-1]
    what = "a kill" if newest.get("was_killed") else "a stop"
    earlier = len(continuations) - 1
    more = f", and {earlier} time{'s' * (earlier > 1)} before" if earlier else ""
    return f"; went on after {what} from its checkpoint of step {newest.get('step')}{more}"


def progress_words(run: LiveRun) -> str:
    """`step 120 of 500 · 24.0 %`, as far as it is known."""
    if run.step is None:
        return "no step yet"
    text = f"step {run.step:,}"
    if run.total_steps is not None and run.share_done is not None:
        text += f" of {run.total_steps:,} · {format_share(run.share_done)}"
    return text


def time_words(run: LiveRun) -> str:
    """`about 5.0 s left · the steps took 15 s`."""
    left, trained = run.seconds_left, run.seconds_trained
    parts = [] if left is None else [f"about {format_duration(left)} left"]
    return " · ".join([*parts, *[f"the steps took {format_duration(trained)}"] * bool(trained)])


def safety_words(run: RunFacts, now: float) -> str:
    """What of the work is safe elsewhere, and how old it is at the unix time `now`."""
    known = run.copies
    if "place" not in known or not known["place"]:
        return HERE_ONLY
    place, step, saved_at = (known.get(key) for key in ("place", "confirmed_step", "saved_at"))
    if step is None:
        text = f"backup: nothing is confirmed yet at {place}"
    else:
        text = f"backup: step {step} is safe at {place}"
        if isinstance(saved_at, int | float) and run.status == "running":
            text += f"; {format_duration(max(0.0, now - saved_at))} of work would be lost now"
    if problem := known.get("problem"):
        text += f"; NOT SAFE YET: {problem}"
    elif error := known.get("error"):
        text += f"; {error}"
    return clip(text, MAX_CHARACTERS)


def error_words(record: Record) -> str:
    """An error that the training got over: `step 12: spike; went back to step 10 (message)`."""
    text = f"step {record.get('step', '?')}: {record.get('kind', 'error')}"
    if action := record.get("action"):
        text += f"; {action}"
    if message := record.get("message"):
        text += f" ({message})"
    return clip(text, MAX_CHARACTERS)


def alert_words(record: Record) -> str:
    """An alert of the monitor: `step 12: GPU 0: 91 °C, more than 85 °C (over)`."""
    text = str(record.get("message") or record.get("rule") or "an alert")
    if record.get("step") is not None:
        text = f"step {record['step']}: {text}"
    return clip(text, MAX_CHARACTERS) + (" (over)" if record.get("ended_at") else "")
