"""The report's section on quantum steps: the decision, how it was made, and a comparison."""

from collections.abc import Mapping, Sequence

from infrastructure.core.messages import phrase
from infrastructure.features.quantum.records import QUANTUM_FILE, baseline_is_as_good
from infrastructure.monitoring.drawing.formatting import (
    clip,
    format_duration,
    format_number,
    is_number,
)
from infrastructure.monitoring.drawing.html import Markup, element, table
from infrastructure.monitoring.records.run_reader import objects_in
from infrastructure.monitoring.records.run_view import RunView, list_of, mapping_of
from infrastructure.monitoring.report.report_sections import NOTHING, section

MAX_STEPS = 50
QUESTIONS = {
    "data_selection": "quantum.question_data",
    "block_selection": "quantum.question_blocks",
}

DECIDED = {
    "data_selection": "quantum.chosen_data",
    "block_selection": "quantum.chosen_blocks",
}


def quantum_steps(view: RunView) -> Markup:
    """Return the section, or nothing if there was no quantum step."""
    records = objects_in(view["of_features"][QUANTUM_FILE].get("records"))
    if not records:
        return NOTHING
    answered = [r for r in records if r.get("outcome") == "answered"]
    code = QUESTIONS.get(str(records[-1].get("problem")))
    question = phrase(code) if code else ""
    return section(
        "The quantum step",
        element("p", f"{_decision(answered, records)} {_worth(answered)}".strip()),
        element(
            "details",
            element("summary", phrase("quantum.how_decided")),
            element("p", f"{question} {_last(answered, records)}"),
            _steps(records),
            _words(answered),
        ),
    )


def _decision(
    answered: Sequence[Mapping[str, object]], records: Sequence[Mapping[str, object]]
) -> str:
    """Return a sentence that says what the newest answer decided."""
    if not answered:
        why = clip(str(records[-1].get("why", "")), 600)
        if not why:
            return phrase("quantum.nothing_decided")
        return phrase("quantum.nothing_decided_because", reason=why)
    kind, chosen = str(answered[-1].get("problem")), clip(str(answered[-1].get("chosen", "")), 600)
    return phrase(DECIDED.get(kind, "quantum.decided"), chosen=chosen)


def _worth(answered: Sequence[Mapping[str, object]]) -> str:
    """Return a sentence that says whether the newest answer is better than the baselines'."""
    if not answered:
        return ""
    cost = sum(_numbers([record.get("seconds") for record in answered]))
    newest = answered[-1]
    energy, plain = newest.get("energy"), mapping_of(newest.get("alternatives"))
    best = min(_numbers(list(plain.values())), default=None)
    if not is_number(energy) or best is None:
        return phrase("quantum.benefit_not_measured", duration=format_duration(cost))
    if baseline_is_as_good(newest):
        why = phrase("quantum.simple_rule_equal")
        return phrase("quantum.gained_nothing", duration=format_duration(cost), reason=why)
    return phrase("quantum.better_answer_found", duration=format_duration(cost))


def _last(answered: Sequence[Mapping[str, object]], records: Sequence[Mapping[str, object]]) -> str:
    """Return a text with the number of answers, and the solver of the newest answer."""
    skipped = sum(r.get("outcome") in ("skipped", "failed") for r in records)
    without = phrase("quantum.unanswered_times", times=_times(skipped)) if skipped else ""
    if not answered:
        return f"{without}: {clip(str(records[-1].get('why', '')), 600)}"
    who = str(answered[-1].get("answered_by", ""))
    last = "last " * (len(answered) > 1)
    text = phrase(
        "quantum.answered_times",
        times=_times(len(answered)).lower(),
        last=last,
        sampler=who,
    )
    return clip(
        " ".join(
            [
                phrase("quantum.energy_explained"),
                text,
                *([f"{without}."] if without else []),
            ]
        ),
        800,
    )


def _times(number: int) -> str:
    return "Once" if number == 1 else f"{number:,} times"


def _steps(records: Sequence[Mapping[str, object]]) -> Markup:
    columns = (
        *("step", "epoch", "answered by", "binary variables", "energy", "best simple method"),
        *("time", phrase("quantum.solver_time_column")),
    )
    rows = [_step(record) for record in records[-MAX_STEPS:]]
    return table(columns, rows, "stack")


def _step(record: Mapping[str, object]) -> list[object]:
    epoch = record.get("epoch")  # counted from 0 in the file
    place = [_number(record.get("step")), _number(epoch + 1 if is_number(epoch) else None)]
    if record.get("outcome") != "answered":
        text = f"{record.get('outcome')}: {record.get('why', '')}".removesuffix(": ")
        return [*place, clip(text, 400), "", "", "", "", ""]
    others = {k: v for k, v in mapping_of(record.get("alternatives")).items() if is_number(v)}
    name = min(others, key=lambda one: others[one], default="")
    who = str(record.get("answered_by")) + (
        phrase("quantum.fallback") if record.get("is_fallback") else ""
    )
    return [
        *place,
        clip(who, 80),
        _number(record.get("num_variables")),
        _number(record.get("energy")),
        f"{name.replace('_', ' ')} {_number(others[name])}" if name else "",
        _seconds(record.get("seconds")),
        _seconds(record.get("solver_seconds")),
    ]


def _words(answered: Sequence[Mapping[str, object]]) -> Markup:
    """Build a list of remarks on the newest answer, and of examples that this answer excluded."""
    if not answered:
        return NOTHING
    newest = answered[-1]
    remarks = [*list_of(newest.get("failures")), *list_of(newest.get("remarks"))]
    lines = [clip(str(one), 400) for one in remarks]
    if dropped := list_of(newest.get("dropped")):
        lines.append(
            clip(
                phrase("quantum.excluded_examples", examples=", ".join(map(str, dropped))),
                1000,
            )
        )
    return element("ul", *[element("li", line) for line in lines]) if lines else NOTHING


def _numbers(value: object) -> list[float]:
    return [float(v) for v in list_of(value) if is_number(v) and v - v == 0]


def _number(value: object) -> str:
    return format_number(value) if is_number(value) else ""


def _seconds(value: object) -> str:
    return format_duration(value) if is_number(value) else ""
