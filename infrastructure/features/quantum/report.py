"""The report's section on quantum steps: the decision, how it was made, and a comparison."""

from collections.abc import Mapping, Sequence

from infrastructure.core.messages import phrase
from infrastructure.features.quantum.plots import (
    block_picture,
    density_picture,
    energy_picture,
)
from infrastructure.features.quantum.records import (
    COMPARISON_FILE,
    QUANTUM_FILE,
    baseline_is_as_good,
)
from infrastructure.monitoring.drawing.formatting import (
    clip,
    format_duration,
    format_number,
    format_share,
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
    "rank_allocation": "quantum.question_ranks",
}

DECIDED = {
    "data_selection": "quantum.chosen_data",
    "block_selection": "quantum.chosen_blocks",
    "rank_allocation": "quantum.chosen_ranks",
}
COMPARED = {
    "quantum": "the sampler's answer",
    "random": "a random choice",
    "greedy": "a greedy choice",
    "none": "no choice: everything",
}


def quantum_steps(view: RunView) -> Markup:
    """Return the report's section on quantum steps, which is empty if the run had none."""
    files = view["of_features"]
    records = objects_in(files[QUANTUM_FILE].get("records"))
    compared = files[COMPARISON_FILE]
    if not records:
        return NOTHING
    answered = [r for r in records if r.get("outcome") == "answered"]
    code = QUESTIONS.get(str(records[-1].get("problem")))
    question = phrase(code) if code else ""
    return section(
        "The quantum step",
        element("p", f"{_decision(answered, records)} {_worth(answered, compared)}".strip()),
        comparison_table(compared),
        element(
            "details",
            element("summary", phrase("quantum.how_decided")),
            element("p", f"{question} {_last(answered, records)}"),
            _pictures(answered),
            _steps(records),
            _tasks(answered),
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


def _worth(answered: Sequence[Mapping[str, object]], compared: Mapping[str, object]) -> str:
    """Return a sentence that says whether the quantum step paid off.

    It uses the result of `temper quantum compare` if there is one, and otherwise the baselines.
    """
    if not answered:
        return ""
    losses = {
        str(row.get("answer")): row.get("eval_loss")
        for row in list_of(compared.get("rows"))
        if isinstance(row, Mapping)
    }
    with_it, without = losses.get("quantum"), losses.get("none")
    cost = sum(_numbers([record.get("seconds") for record in answered]))
    if is_number(with_it) and is_number(without):
        paid = phrase("quantum.worthwhile" if with_it < without else "quantum.not_worthwhile")
        losses_text = phrase(
            "quantum.loss_compared",
            loss_with=format_number(with_it),
            loss_without=format_number(without),
        )
        return f"{paid}: {losses_text}, for {format_duration(cost)}."
    newest = answered[-1]
    energy, plain = newest.get("energy"), mapping_of(newest.get("alternatives"))
    best = min(_numbers(list(plain.values())), default=None)
    if not is_number(energy) or best is None:
        return phrase("quantum.benefit_not_measured", duration=format_duration(cost))
    if baseline_is_as_good(newest):
        why = phrase("quantum.simple_rule_equal")
        return phrase("quantum.gained_nothing", duration=format_duration(cost), reason=why)
    return phrase("quantum.better_answer_found", duration=format_duration(cost))


def comparison_table(compared: Mapping[str, object]) -> Markup:
    """Build a table of the compared runs' held-out losses, or nothing without a comparison."""
    rows = [
        [
            COMPARED.get(str(row.get("answer")), clip(str(row.get("answer")), 60)),
            _number(row.get("eval_loss")),
            _number(row.get("steps")),
            _seconds(row.get("quantum_seconds")),
            _seconds(row.get("seconds")),
        ]
        for row in list_of(compared.get("rows"))
        if isinstance(row, Mapping)
    ]
    if not rows:
        return NOTHING
    heading = element("h3", phrase("quantum.comparison_heading"))
    columns = (
        "trained on",
        "held-out loss",
        "steps",
        "time of quantum steps",
        phrase("quantum.total_time_column"),
    )
    return element("div", heading, table(columns, rows, "numbers"))


def _last(answered: Sequence[Mapping[str, object]], records: Sequence[Mapping[str, object]]) -> str:
    """Say in a sentence how many answers there were, and which solver gave the newest."""
    skipped = sum(r.get("outcome") in ("skipped", "failed", "unused") for r in records)
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


def _pictures(answered: Sequence[Mapping[str, object]]) -> Markup:
    if not answered:
        return NOTHING
    figures = [_energies(answered[-1]), _density(answered), _blocks(answered)]
    shown = [figure for figure in figures if figure]
    return element("div", *shown, css_class="columns") if shown else NOTHING


def _energies(record: Mapping[str, object]) -> Markup:
    chance = _numbers(record.get("random_energies"))
    energy, who = record.get("energy"), str(record.get("answered_by"))
    if not chance or not isinstance(energy, int | float):
        return NOTHING
    others = {
        str(name): float(value)
        for name, value in mapping_of(record.get("alternatives")).items()
        if isinstance(value, int | float)
    }
    picture = energy_picture(chance, {**others, who: float(energy)}, who)
    better = sum(value > energy for value in chance) / len(chance)
    caption = phrase(
        "quantum.energy_caption",
        share=format_share(better),
        count=len(chance),
    )
    heading = element("h3", phrase("quantum.energy_heading", step=record.get("step")))
    return element("figure", heading, picture, element("figcaption", caption))


def _density(answered: Sequence[Mapping[str, object]]) -> Markup:
    rows = [
        (f"step {r.get('step')}", shares)
        for r in answered
        if (shares := _numbers(r.get("density")))
    ]
    if not rows:
        return NOTHING
    caption = phrase("quantum.density_caption")
    heading = element("h3", "Chosen examples")
    return element("figure", heading, density_picture(rows), element("figcaption", caption))


def _blocks(answered: Sequence[Mapping[str, object]]) -> Markup:
    answers = [
        (f"step {r.get('step')}", [str(block) for block in list_of(r.get("blocks"))])
        for r in answered
        if r.get("blocks")
    ]
    names = [str(block) for block in list_of(answered[-1].get("all_blocks"))]
    if not answers or not names:
        return NOTHING
    heading = element("h3", "Trained blocks")
    caption = phrase("quantum.blocks_caption")
    return element("figure", heading, block_picture(names, answers), element("figcaption", caption))


def _steps(records: Sequence[Mapping[str, object]]) -> Markup:
    columns = (
        *("step", "epoch", "answered by", "binary variables", "energy", "best simple method"),
        *("mean of random choices", "time", phrase("quantum.solver_time_column")),
    )
    rows = [_step(record) for record in records[-MAX_STEPS:]]
    return table(columns, rows, "stack")


def _step(record: Mapping[str, object]) -> list[object]:
    epoch = record.get("epoch")  # counted from 0 in the file
    place = [_number(record.get("step")), _number(epoch + 1 if is_number(epoch) else None)]
    if record.get("outcome") != "answered":
        text = f"{record.get('outcome')}: {record.get('why', '')}".removesuffix(": ")
        return [*place, clip(text, 400), "", "", "", "", "", ""]
    others = {k: v for k, v in mapping_of(record.get("alternatives")).items() if is_number(v)}
    name = min(others, key=lambda one: others[one], default="")
    chance = _numbers(record.get("random_energies"))
    who = str(record.get("answered_by")) + (
        phrase("quantum.fallback") if record.get("is_fallback") else ""
    )
    return [
        *place,
        clip(who, 80),
        _number(record.get("num_variables")),
        _number(record.get("energy")),
        f"{name.replace('_', ' ')} {_number(others[name])}" if name else "",
        _number(sum(chance) / len(chance)) if chance else "",
        _seconds(record.get("seconds")),
        _seconds(record.get("solver_seconds")),
    ]


def _tasks(answered: Sequence[Mapping[str, object]]) -> Markup:
    """Build a table of how many examples of each task the newest answer chose."""
    tasks = mapping_of(answered[-1].get("by_task")) if answered else {}
    rows = [
        (clip(str(task), 80), f"{kept:,}", f"{there:,}", format_share(kept / there))
        for task, (kept, there) in (
            (task, pair)
            for task, pair in tasks.items()
            if isinstance(pair, list) and len(_numbers(pair)) == 2 and pair[1]
        )
    ]
    columns = ("task", "chosen", "examined", "share")
    return table(columns, rows, "numbers") if len(rows) > 1 else NOTHING


def _words(answered: Sequence[Mapping[str, object]]) -> Markup:
    """Build a list of remarks on the newest answer, and of examples that it excluded."""
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
