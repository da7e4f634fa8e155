"""What is told of a run in one sentence, the same in the terminal and on the page."""

from infrastructure.monitoring.drawing.formatting import clip, format_duration
from infrastructure.monitoring.drawing.metrics_file import Record
from infrastructure.monitoring.records.run_reader import RunFacts

MAX_CHARACTERS = 300


def safety_words(run: RunFacts, now: float) -> str:
    """What of the work is safe elsewhere, and how old it is at the unix time `now`."""
    known = run.copies
    if "place" not in known or not known["place"]:
        return "backup: none; the checkpoints lie on this machine only"
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
