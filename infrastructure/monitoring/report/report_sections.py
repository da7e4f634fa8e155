"""The sections of a report, each from the plain JSON of a run; a missing key is a missing line."""

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from infrastructure.monitoring.drawing.curves import (
    curves,
    evaluated_keys,
    points_by_key,
    single_numbers,
)
from infrastructure.monitoring.drawing.formatting import (
    clip,
    format_duration,
    format_number,
    format_share,
)
from infrastructure.monitoring.drawing.html import (
    MAX_TEXT_CHARACTERS,
    Markup,
    as_json,
    clean_markup,
    element,
    facts,
    joined,
    raw_markup,
    readable_key,
    readable_value,
    table,
)
from infrastructure.monitoring.drawing.tables import before_after_rows
from infrastructure.monitoring.records.run_reader import FINISHED, RunFacts, format_moment

MAX_ROWS = 200
MAX_PREVIEW_CHARACTERS = 200_000
NOTHING = raw_markup("")
HEADING = re.compile(r'<section id="(at-[a-z0-9-]+)"[^>]*><h2>(.*?)</h2>')
MIN_CONTENTS = 4

OUTCOMES = {
    "finished": "Finished",
    "stopped": "Stopped before the end",
    "failed": "Failed",
    "running": "Not finished: still running, or interrupted",
}

WHAT_LIES_WHERE = {
    "final": "the trained model in the standard Hugging Face layout, with its tokenizer",
    "stacks": "each stack of layers by itself; all of them are the model",
    "rack": "the whole model once more, with plain weights",
    "checkpoints": "everything that is needed to go on, bit for bit",
    "metrics.jsonl": "a line for every logged step",
    "metrics.csv": "the same, for a spreadsheet",
    "tensorboard": "the same, for TensorBoard",
    "logs": "what the run said",
    "report.html": "this page",
    "run.json": "configuration, versions, data and machine",
    "summary.json": "how it ended",
}

FormatNumber = Callable[[float], str]


def section(heading: str, *contents: object, css_class: str | None = None) -> Markup:
    """A card with a heading, which links lead to; nothing at all when it would be empty."""
    if not any(contents):
        return NOTHING
    anchor = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
    return element(
        "section", element("h2", heading), *contents, id=f"at-{anchor}", css_class=css_class
    )


def contents_of(sections: Sequence[Markup]) -> Markup:
    """Links to the sections that have a heading; nothing where there are few."""
    known = [match.groups() for part in sections for match in HEADING.finditer(part)]
    if len(known) < MIN_CONTENTS:
        return NOTHING
    links = [element("a", raw_markup(heading), href=f"#{anchor}") for anchor, heading in known]
    return element("nav", *links, css_class="contents", **{"aria-label": "Contents"})


def mapping_of(value: object) -> dict[str, object]:
    """A copy of a mapping; of anything else an empty one."""
    return dict(value) if isinstance(value, Mapping) else {}


def header(run: RunFacts) -> Markup:
    """The head of the page: which run, and how it ended."""
    status = element("span", run.status, css_class=f"status {run.status}")
    title = element("h1", run.title, status)
    return element(
        "header",
        element("div", "Temper · training report", css_class="over"),
        title,
        element("p", _outcome(run), css_class="lead"),
        element("p", subject(run), css_class="soft"),
    )


def _outcome(run: RunFacts) -> str:
    parts = [OUTCOMES[run.status]]
    if run.last_step is not None:
        parts[0] += f" at step {run.last_step:,}"
    seconds = run.summary.get("seconds")
    if isinstance(seconds, int | float):
        parts[0] += f", after {format_duration(seconds)}"
    if reason := run.summary.get("reason"):
        parts.append(str(reason))
    if run.status == "running" and run.last_record_at:
        parts.append(f"the last numbers are of {run.last_record_at}")
    return clip(": ".join([parts[0], "; ".join(parts[1:])]) if parts[1:] else parts[0], 600) + "."


def subject(run: RunFacts) -> str:
    """What is trained on what, in one line."""
    model = mapping_of(run.run.get("model"))
    parts = [f"Model {model['name']}"] if "name" in model else []
    if isinstance(total := model.get("num_parameters"), int):
        text = f"{total / 1e6:,.4g} M parameters"
        trained = model.get("num_trainable")
        if isinstance(trained, int) and trained != total:
            text += f", {trained / 1e6:,.4g} M of them trained"
        parts.append(text)
    if path := run.config_value("data.path"):
        parts.append(f"data {path}")
    if created := run.run.get("created"):
        parts.append(f"begun {format_moment(str(created))}")
    if run.title != run.run_id:
        parts.append(f"run {run.run_id}")
    return " · ".join(parts)


def tiles(run: RunFacts) -> Markup:
    """The numbers to remember, large."""
    before, after = run.before, run.after
    shown = [
        _change_tile("Held-out loss", before.get("eval_loss"), after.get("eval_loss")),
        _change_tile(
            "Exact match",
            mapping_of(before.get("exact_match")).get("all"),
            mapping_of(after.get("exact_match")).get("all"),
            format_share,
        ),
        NOTHING if "eval_loss" in after else _tile("Loss", run.last("loss"), format_number),
        _tile("Steps", run.last_step, format_number),
        _tile("Tokens", run.last("tokens"), format_number),
        _tile("Tokens per second", run.tokens_per_second, lambda rate: format_number(round(rate))),
        _tile("Time", run.summary.get("seconds"), format_duration),
        _cost_tile(mapping_of(run.summary.get("cost"))),
    ]
    shown = [tile for tile in shown if tile]
    return element("section", *shown, css_class="tiles") if shown else NOTHING


def _tile(name: str, value: object, format_value: FormatNumber) -> Markup:
    if not isinstance(value, int | float):
        return NOTHING
    shown = element("div", _safely(format_value, value), css_class="value")
    return element("div", element("div", name, css_class="name"), shown, css_class="tile")


def _cost_tile(cost: Mapping[str, object]) -> Markup:
    if not isinstance(text := cost.get("text"), str):
        return NOTHING
    shown = element("div", text, css_class="value")
    return element("div", element("div", "Cost", css_class="name"), shown, css_class="tile")


def _change_tile(
    name: str, before: object, after: object, format_value: FormatNumber = format_number
) -> Markup:
    if not isinstance(after, int | float):
        return NOTHING
    shown: list[object] = [format_value(after)]
    if isinstance(before, int | float):
        shown.insert(0, element("span", f"{format_value(before)} → ", css_class="from"))
    value = element("div", *shown, css_class="value")
    return element("div", element("div", name, css_class="name"), value, css_class="tile")


def _safely(format_value: FormatNumber, value: float) -> str:
    return str(format_value(value)) if value == value else "NaN"


def notices(run: RunFacts, not_finite: list[str]) -> Markup:
    """What went wrong, first on the page."""
    parts: list[Markup] = []
    if error := run.summary.get("error"):
        parts.append(element("pre", clip(str(error), MAX_TEXT_CHARACTERS)))
    lines = [*run.problems, *[f"Not finite: {sentence}." for sentence in not_finite]]
    if lines:
        parts.append(element("ul", *[element("li", line) for line in lines]))
    if not parts:
        return NOTHING
    return section("What to know", *parts, css_class="notice")


def errors(run: RunFacts) -> Markup:
    """What the training got over, and what ended it."""
    rows = []
    for record in run.errors:
        named = record.get("rows")
        of_rows = ", ".join(map(str, named)) if isinstance(named, list) else ""
        texts = (record.get(key, "") for key in ("step", "kind", "message", "action"))
        rows.append([clip(str(text), MAX_TEXT_CHARACTERS) for text in (*texts, of_rows)])
    if not rows:
        return NOTHING
    headings = ("step", "what", "in its own words", "what was done", "rows")
    is_over = run.status == FINISHED
    title = "What it got over" if is_over else "What went wrong and what was done"
    return section(title, _limited(headings, rows, "stack"))


def before_after(run: RunFacts) -> Markup:
    """Numbers before and after the training; nothing where none were measured."""
    loss = run.config_value("training.loss")
    rows = before_after_rows(run.before, run.after, loss) if run.after else []
    if not rows:
        return NOTHING
    classes = ["part" if row[0].startswith(" ") else "total" for row in rows]
    cells = [(row[0].strip(), *row[1:]) for row in rows]
    headings = ("", "before", "after", "change")
    return section("Before → after", table(headings, cells, "numbers change", classes))


def example(run: RunFacts) -> Markup:
    """A held-out prompt with its answers; nothing where there is none."""
    given = mapping_of(run.summary.get("example"))
    shown = {key: value for key, value in given.items() if value is not None}
    if not shown:
        return NOTHING
    answers = []
    for key, name in (("expected", "Expected"), ("before", "Before"), ("after", "After")):
        if key in shown:
            heading = element("h3", name, _verdict(shown, key))
            answers.append(element("div", heading, element("pre", _as_text(shown[key]))))
    prompt = element("h3", "Prompt") + element("pre", _as_text(shown.get("prompt", "")))
    three = element("div", *answers, css_class="columns three")
    return section("A generated example", raw_markup(prompt), three)


def _verdict(shown: Mapping[str, object], key: str) -> Markup:
    if key == "expected" or "expected" not in shown:
        return NOTHING
    is_right = _as_text(shown[key]).strip() == _as_text(shown["expected"]).strip()
    word, css_class = ("as expected", "good") if is_right else ("differs", "bad")
    return element("span", word, css_class=css_class)


def _as_text(value: object) -> str:
    """Text as it is; a list of messages as `role: content` lines."""
    if isinstance(value, list) and all(isinstance(message, Mapping) for message in value):
        lines = [f"{m.get('role', '')}: {m.get('content', '')}" for m in value]
        value = "\n".join(lines)
    return clip(value if isinstance(value, str) else as_json(value), MAX_TEXT_CHARACTERS)


def curve_section(run: RunFacts) -> Markup:
    """The curves of the training."""
    points, evaluated = points_by_key(run.records), evaluated_keys(run.records)
    figures, numbers = curves(points, evaluated), single_numbers(points, evaluated)
    if not figures and not numbers:
        return section("Curves", element("p", "No step has been logged yet.", css_class="soft"))
    small = element("div", *figures[1:], css_class="columns") if figures[1:] else NOTHING
    return section("Curves", *figures[:1], small, numbers)


def data(run: RunFacts) -> Markup:
    """Whatever the data report says: sentences, counts, tables, and the preview of tokens."""
    report = {**mapping_of(run.run.get("data")), **run.data_report}
    lines = report.pop("lines", None)
    sentences = lines if isinstance(lines, list) else []
    previews = [str(report.pop(key)) for key in list(report) if key.endswith("html")]
    single = {key: value for key, value in report.items() if not isinstance(value, dict | list)}
    groups = [_group(key, value) for key, value in report.items() if key not in single]
    parts = []
    if sentences:
        items = [element("li", sentence) for sentence in sentences[:MAX_ROWS]]
        parts.append(element("ul", *items))
    if any(groups):
        parts.append(element("div", *groups, css_class="columns"))
    if single and sentences:
        parts.append(element("details", element("summary", "More facts"), facts(single)))
    elif single:
        parts.append(facts(single))
    return section("Data", *parts, *[_preview(preview) for preview in previews])


def _group(key: str, value: Any) -> Markup:
    if not value:
        return NOTHING
    heading = element("h3", readable_key(key).capitalize())
    if isinstance(value, Mapping):
        rows = [(name, readable_value(str(name), number)) for name, number in value.items()]
        return element("div", heading, _limited(("", ""), rows, "numbers"))
    if all(isinstance(item, Mapping) for item in value):
        columns = list(dict.fromkeys(str(name) for item in value for name in item))
        cells = [[readable_value(c, item.get(c, "")) for c in columns] for item in value]
        return element("div", heading, _limited([readable_key(c) for c in columns], cells, None))
    items = [element("li", readable_value("", item)) for item in value[:MAX_ROWS]]
    return element("div", heading, element("ul", *items))


def _limited(
    headings: Sequence[str], rows: Sequence[Sequence[object]], css_class: str | None
) -> Markup:
    parts = [table(headings, rows[:MAX_ROWS], css_class)]
    if len(rows) > MAX_ROWS:
        parts.append(element("p", f"and {len(rows) - MAX_ROWS:,} more rows", css_class="soft"))
    return joined(parts)


def _preview(html: str) -> Markup:
    if len(html) > MAX_PREVIEW_CHARACTERS:
        return element("p", "The preview is too large for this page.", css_class="soft")
    box = element("div", clean_markup(html), css_class="preview")
    return element("details", element("summary", "What the model sees: the first examples"), box)


def configuration(run: RunFacts) -> Markup:
    """What was set for this run in the open, all other values behind a click."""
    config = run.config
    given = {key: (value, source) for key, (value, source) in config.items() if source != "default"}
    rest = {key: pair for key, pair in config.items() if key not in given}
    parts = []
    if command := run.run.get("command"):
        text = shlex.join(map(str, command)) if isinstance(command, list) else str(command)
        parts.append(element("pre", clip(text, MAX_TEXT_CHARACTERS)))
    if given:
        parts.append(_config_table(given))
    if rest:
        label = f"{len(rest)} values by default"
        parts.append(element("details", element("summary", label), _config_table(rest)))
    return section("Configuration", *parts)


def _config_table(values: Mapping[str, tuple[object, str]]) -> Markup:
    rows = [(key, _exact(value), source) for key, (value, source) in values.items()]
    return table(("setting", "value", "comes from"), rows, "config stack")


def _exact(value: object) -> str:
    """A setting as it can be typed again."""
    return clip(value if isinstance(value, str) else as_json(value), MAX_TEXT_CHARACTERS)


def machine(run: RunFacts) -> Markup:
    """Hardware and versions."""
    parts = []
    for key, heading in (("hardware", "Hardware"), ("versions", "Versions")):
        if known := mapping_of(run.run.get(key)):
            if key == "hardware" and (precision := run.run.get("precision")):
                known["precision"] = precision
            parts.append(element("div", element("h3", heading), facts(known)))
    return section("Machine", element("div", *parts, css_class="columns")) if parts else NOTHING


def places(run: RunFacts) -> Markup:
    """Where everything lies."""
    named = {str(k): str(v) for k, v in mapping_of(run.summary.get("paths")).items()}
    there = {n: str(run.directory / n) for n in WHAT_LIES_WHERE if (run.directory / n).exists()}
    shown = named | {n: path for n, path in there.items() if path not in named.values()}
    rows = [
        (name, element("code", path), WHAT_LIES_WHERE.get(Path(path).name, ""))
        for name, path in shown.items()
    ]
    return section("Where everything lies", table((), rows, "stack")) if rows else NOTHING


def safety(run: RunFacts) -> Markup:
    """What of the work is where, and what would be lost if this machine died."""
    known = run.copies
    if "place" not in known:
        text = str(known.get("text", "")) or "The checkpoints lie on this machine only."
        return section("Where your work is", element("p", text, css_class="soft"))
    rows: list[tuple[str, object]] = [("copied to", element("code", str(known["place"])))]
    if (step := known.get("confirmed_step")) is None:
        rows.append(("safe there", "nothing is confirmed yet"))
    else:
        rows.append(("safe there", f"step {step}, {_moments(known)}"))
    if (newest := known.get("newest_step")) is not None and newest != step:
        rows.append(("on this machine only", f"step {newest}"))
    if published := known.get("published"):
        rows.append(("the trained model", element("code", str(published))))
    if error := known.get("problem") or known.get("error"):
        rows.append(("what is wrong", clip(str(error), MAX_TEXT_CHARACTERS)))
    return section("Where your work is", table((), rows, "stack"))


def _moments(known: Mapping[str, object]) -> str:
    moments = [
        f"{word} {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))}"
        for word, key in (("saved", "saved_at"), ("confirmed", "confirmed_at"))
        if isinstance(moment := known.get(key), int | float)
    ]
    return ", ".join(moments)


def next_steps(run: RunFacts) -> Markup:
    """The commands to type next."""
    final = run.directory / "final"
    steps: list[tuple[str, str]] = []
    if run.status != "finished":
        steps.append(("Go on where it stopped", f"temper train-resume {_quoted(run.directory)}"))
    if final.exists():
        held_out = run.config_value("data.eval_path") or run.config_value("data.path")
        data = _quoted(held_out) if held_out else "DATA"
        steps.append(("Evaluate the result", f"temper train-eval {_quoted(final)} {data}"))
    if (run.directory / "tensorboard").exists():
        logs = run.directory / "tensorboard"
        steps.append(("See the numbers in TensorBoard", f"tensorboard --logdir {_quoted(logs)}"))
    parts = [part for what, line in steps for part in (element("p", what), element("pre", line))]
    return section("How to go on", *parts)


def _quoted(path: object) -> str:
    return shlex.quote(str(path))
