"""The texts that describe a run on the console, when it starts and at its end.

At the end, these are the metrics before and after training, an example, and the output paths. Loads
no torch.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from infrastructure.core.errors import InputError
from infrastructure.core.features import merged
from infrastructure.core.messages import counted, phrase
from infrastructure.core.notebook import in_notebook_kernel
from infrastructure.monitoring.drawing.formatting import blank, format_duration, printable
from infrastructure.monitoring.drawing.tables import before_after_table
from infrastructure.monitoring.records.run_view import WHAT_LIES_WHERE
from infrastructure.monitoring.records.status_text import is_askable, question_command
from infrastructure.run.directory import RunStatus
from infrastructure.run.history import history_in, history_lines
from infrastructure.run.record_types import Summary

MAX_EXAMPLE_LINES, MAX_LINE_CHARACTERS = 8, 400
FEW_PROMPTS = 5  # with fewer, each is worth more than 20 percentage points
SEES = "processor_config.json"  # in the folder of a vision-language model

RESULT = "result"  # the name of a part that is displayed elsewhere


def steps_ahead(done: int, total: int) -> str:
    """Return a text with the number of remaining steps. For a resumed run, it also names the last
    step.
    """
    if done:
        return f"{counted(total - done, 'more step')}, to {total:,}"
    return counted(total, "step")


class NoSuchPartError(InputError, KeyError):
    """An error for a part that a run does not have, such as the model of an unfinished run."""

    __str__ = InputError.__str__  # that of KeyError quotes the text


class Paths(dict[str, str]):
    """The paths of a run's existing outputs, by name."""

    def __missing__(self, name: str) -> str:
        if name == "model" and "run" in self:
            raise NoSuchPartError("run.no_model_until_finished", run=Path(self["run"]).name)
        raise KeyError(name)


def paths_of(run_path: Path) -> Paths:
    """Return the paths of a run's existing outputs, by name."""
    paths = {
        "run": run_path,
        "model": run_path / "final",
        **{name: run_path / name for name in merged("outputs")},
        "checkpoints": run_path / "checkpoints",
        "metrics": run_path / "metrics.jsonl",
        "report": run_path / "report.html",
    }
    return Paths({name: str(path) for name, path in paths.items() if path.exists()})


def closing_lines(run_path: Path, summary: Summary, is_result_shown: bool = False) -> list[str]:
    """Return the closing lines of a run: the table of metrics, an example, and the output paths.

    Args:
        is_result_shown: whether everything except the output paths is already visible in a
            notebook.
    """
    return ([] if is_result_shown else _result_lines(summary)) + _place_lines(run_path, summary)


def _result_lines(summary: Summary) -> list[str]:
    loss, early = summary.get("loss_function"), early_lines(summary)
    table = before_after_table(summary.get("before") or {}, summary.get("after") or {}, loss)
    lines = [
        *early,
        *best_lines(summary),
        *changed_lines(summary),
        "",
        table or phrase("run.nothing_held_out"),
    ]
    if (step := summary.get("held_out_changed_after")) is not None:
        lines.append(phrase("run.before_not_comparable", step=step))
    if num_questions := summary.get("num_questions"):
        prompts = _of_held_out(num_questions, summary)
        lines.append(phrase("run.exact_match_over", prompts=prompts))
    if num_pairs := summary.get("num_pairs"):
        lines.append(phrase("run.ranked_pairs", count=num_pairs))
    if example := summary.get("example"):
        lines += [
            "",
            phrase("run.held_out_example"),
            *_indented("prompt", example["prompt"], keeps_end=True),
        ]
        lines += _indented("expected", example["expected"])
        lines += _indented("before", example["before"]) + _indented("after", example["after"])
    return lines + (["", *costs] if (costs := cost_lines(summary)) else [])


def changed_lines(summary: Summary) -> list[str]:
    """Return the changes during training, one per line; empty if there were none."""
    lines = history_lines(history_in(summary))
    return (
        [phrase("run.changed_during_training"), *(f"  {line}" for line in lines)] if lines else []
    )


def early_lines(summary: Summary) -> list[str]:
    """Return lines on why a finished run took fewer steps than planned; empty if it took
    all steps.
    """
    steps, total, reason = (summary.get(key) for key in ("steps", "total_steps", "reason"))
    is_finished = summary.get("status") == RunStatus.FINISHED
    if not (is_finished and isinstance(steps, int) and isinstance(total, int) and steps < total):
        return []
    why = f": {reason}" if reason else ""
    return [phrase("run.finished_early", steps=steps, total=total, reason=why)]


def best_lines(summary: Summary) -> list[str]:
    """Return a line that names the step of the trained model if this is not the last step."""
    step = summary.get("final_step")
    return [] if step is None else [phrase("run.model_of_best_step", step=step)]


def _place_lines(run_path: Path, summary: Summary) -> list[str]:
    paths = {name: Path(path) for name, path in summary["paths"].items() if name != "run"}
    lines = ["", phrase("run.files_head", run=_relative(str(run_path)))]
    lines += [
        f"  {path.name:<14} {phrase(WHAT_LIES_WHERE[path.name])}"
        for name, path in paths.items()
        if name != "report"  # a line below says how to open it
    ]
    in_notebook = in_notebook_kernel()
    model = summary["paths"].get("model")
    if model and is_askable(Path(model)):
        sees = (Path(model) / SEES).is_file()
        line = _answer_command(_relative(model), in_notebook, sees, summary)
        lines.append(phrase("run.ask_line", command=line))
    backup = summary.get("backup", {})
    if "published" in backup:
        lines.append(phrase("run.backup_copy", url=backup["published"]))
    looking = _looking(_relative(str(run_path)), in_notebook)
    lines.append(phrase("run.report_line", how=looking))
    if "text" in backup:
        lines.append(backup["text"])
    advice = [_advised(each["text"], each["command"]) for each in summary.get("advice", [])]
    return lines + (["", *advice] if advice else [])


def _advised(text: str, command: str) -> str:
    """Return advice and its command as one line.

    If `command` is not a command that can be typed, it becomes the end of the sentence.
    """
    return f"{text}{':' if command.startswith('temper ') else ''} {command}"


def _of_held_out(num_questions: int, summary: Summary) -> str:
    """Return a text with the number of answered held-out prompts, and a note if the number
    is low.
    """
    num_held_out = summary.get("num_held_out") or 0
    if num_questions >= num_held_out:
        few = phrase("run.too_few_prompts") if num_questions < FEW_PROMPTS else ""
        return phrase("run.held_out_prompts", count=num_questions, few=few)
    is_cut = num_questions < summary.get("validation_prompts", 0)
    return phrase(
        "run.prompts_with_short_answers" if is_cut else "run.answered_held_out_prompts",
        answered=num_questions,
        total=num_held_out,
    )


def _answer_command(model: str, in_notebook: bool, sees: bool, summary: Summary) -> str:
    """Return the command that prompts the trained model, for a shell or a notebook cell."""
    system, has_context = summary.get("system_prompt"), summary.get("has_context", False)
    if in_notebook and not sees:
        more = "" if system is None else f", system={system!r}"
        question = "your question\n\nits context" if has_context else "your question"
        return phrase("run.ask_in_a_cell", model=model, question=json.dumps(question), more=more)
    command = question_command(model, system, has_context=has_context)
    command += " --image FILE" if sees else ""
    return f"!{command} in a cell" if in_notebook else command


def _looking(run: str, in_notebook: bool) -> str:
    """Return a text on how to open the report."""
    if in_notebook:
        return phrase("run.show_report_in_a_cell", run=run)
    return phrase("run.open_report_in_browser", run=run)


def cost_lines(summary: Summary) -> list[str]:
    """Return a line on the cost of the run; empty if the price per hour is unknown."""
    cost = summary.get("cost")
    if cost is None:
        return []
    duration = format_duration(cost["seconds"])
    return [
        phrase(
            "run.total_cost",
            cost=cost["text"],
            duration=duration,
            hourly_price=cost["price_per_hour"],
        )
    ]


def _indented(name: str, text: str | None, *, keeps_end: bool = False) -> list[str]:
    """Return the lines of a text, indented, after its name. A long text is cut.

    With `keeps_end`, the start of a long text is cut instead of its end.
    """
    lines = (text or "").strip().splitlines()
    whole = [_cut(printable(line), keeps_end) for line in lines if line.strip()] or [
        blank(text or "")
    ]
    if len(whole) <= MAX_EXAMPLE_LINES + 1:  # a note would be as long as the one omitted line
        return _beside(name, whole)
    more = [phrase("run.example_lines_omitted", count=len(whole) - MAX_EXAMPLE_LINES)]
    shown = (
        [*more, *whole[-MAX_EXAMPLE_LINES:]] if keeps_end else [*whole[:MAX_EXAMPLE_LINES], *more]
    )
    return _beside(name, shown)


def _beside(name: str, lines: Sequence[str]) -> list[str]:
    first, *rest = lines
    return [f"  {name:<9} {first}", *(f"            {line}" for line in rest)]


def _cut(line: str, keeps_end: bool) -> str:
    """Shorten a line to MAX_LINE_CHARACTERS by cutting its end or, with `keeps_end`, its start."""
    if len(line) <= MAX_LINE_CHARACTERS:
        return line
    kept = MAX_LINE_CHARACTERS - 2
    return f"… {line[-kept:]}" if keeps_end else f"{line[:kept]} …"


def _relative(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
