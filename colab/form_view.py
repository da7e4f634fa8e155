"""The form as widgets: presets, a few settings, all others in groups, and the cost of a run."""

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from colab.field_widgets import DENSE, QUIET, WRONG, FieldRow, Maker, ipywidgets
from colab.form_groups import BASIC, FIELDS, groups
from colab.form_labels import title_of
from colab.form_state import FormState
from infrastructure.config.merging.presets import PRESETS
from infrastructure.core.messages import phrase
from infrastructure.core.redact import redact

NO_CHOICE = "notebook.as_in_cell"
NOTHING = "notebook.no_setting_has_effect"
RIGHT = "color:#188038"


@dataclass(frozen=True)
class FormActions:
    """The callbacks for what a user can do in a form."""

    enter: Callable[[str, str], None]
    choose: Callable[[str | None], None]
    reset: Callable[[], None]
    measure: Callable[[], object]


class FormView:
    """The widgets of one form.

    Args:
        secrets: texts on which secrets exist and which are missing, without their values.

    Attributes:
        rows: the rows by canonical key.
        presets, reset, measure: the list of presets and the buttons.
        box: the widget of the whole form.
    """

    def __init__(self, actions: FormActions, secrets: list[str]) -> None:
        widgets = ipywidgets()
        self._actions = actions
        self._is_drawing = False
        self._make = Maker()
        self.rows = {key: FieldRow(spec, actions.enter, self._make) for key, spec in FIELDS.items()}
        self.presets = widgets.Dropdown(
            options=[
                (phrase(NO_CHOICE), ""),
                *((f"{n}: {p.purpose}", n) for n, p in PRESETS.items()),
            ],
            layout=widgets.Layout(width="40em", max_width="100%"),
        )
        self.presets.observe(self._on_preset, names="value")
        self.reset = widgets.Button(
            description="Undo all", tooltip=phrase("notebook.form_reset_tooltip")
        )
        self.reset.on_click(lambda _: actions.reset())
        self.measure = widgets.Button(
            description="Measure",
            tooltip=phrase("notebook.form_measure_tooltip"),
            layout=widgets.Layout(flex="0 0 auto"),  # otherwise a long line beside it narrows it
        )
        self.measure.on_click(lambda _: actions.measure())
        self._status, self._cost, self._line = (widgets.HTML() for _ in range(3))
        self._secrets = widgets.HTML(_quiet(html.escape(f"secrets: {'; '.join(secrets)}")))
        self._basic = widgets.VBox()
        self._groups = {group: (widgets.VBox(), keys) for group, keys in groups().items()}
        self._nothing = widgets.HTML(_quiet(phrase(NOTHING)))
        self.box = widgets.VBox(self._parts(widgets))

    def _parts(self, widgets: Any) -> list[Any]:
        return [
            self._make(
                "HBox",
                "row",
                children=[self._make("Label", "name", value="Preset"), self.presets, self.reset],
            ),
            self._basic,
            self._status,
            widgets.HBox([self._cost, self.measure], layout=widgets.Layout(align_items="center")),
            self._secrets,
            self._line,
            self._all_settings(widgets),
        ]

    def _all_settings(self, widgets: Any) -> object:
        """Return a widget with all settings in groups, which include the basic settings."""
        inner = _accordion(widgets, {title_of(g): box for g, (box, _) in self._groups.items()})
        return _accordion(widgets, {f"All {len(FIELDS)} settings": inner})

    def draw(self, state: FormState, cost: list[str], is_refuted: bool) -> None:
        """Show the current values, messages and costs in the form.

        Args:
            is_refuted: True if a measurement of a run with these values failed.
        """
        messages = state.messages()
        for key, row in self.rows.items():
            message, is_absent = messages.get(key), state.is_absent(key)
            row.draw(state.text(key), state.source(key), message, is_absent)
        _fill(self._basic, self._rows_of(BASIC, state))
        for box, keys in self._groups.values():
            _fill(box, self._rows_of(keys, state) or (self._nothing,))
        self._is_drawing = True
        try:
            self.presets.value = state.preset or ""
        finally:
            self._is_drawing = False
        self._status.value = _status(state, is_refuted)
        self.draw_cost(cost)
        self._line.value = _line(state)

    def _rows_of(self, keys: Iterable[str], state: FormState) -> tuple[Any, ...]:
        """Return the rows of those settings that have an effect in the current state."""
        return tuple(self.rows[key].box for key in keys if state.is_shown(key))

    def draw_cost(self, lines: list[str]) -> None:
        """Show `lines`, which state the cost of the run."""
        text = "<br>".join(html.escape(redact(line)) for line in lines)
        self._cost.value = f'<div style="{DENSE}">{text}</div>'

    def _on_preset(self, change: Any) -> None:
        if not self._is_drawing:
            self._actions.choose(change["new"] or None)


def _fill(box: Any, rows: tuple[Any, ...]) -> None:
    if box.children != rows:  # otherwise the browser would redraw it
        box.children = rows


def _accordion(widgets: Any, parts: dict[str, Any]) -> object:
    accordion = widgets.Accordion(children=list(parts.values()), selected_index=None)
    for index, title in enumerate(parts):
        accordion.set_title(index, title)
    return accordion


def _quiet(text: str) -> str:
    return f'<span style="{QUIET}">{text}</span>'


def _status(state: FormState, is_refuted: bool) -> str:
    """Return, as HTML, whether a run can start; if it cannot, also the reason."""
    problems = state.problems()
    if problems:
        listed = "".join(f"<li>{html.escape(redact(problem))}</li>" for problem in problems)
        text = f'<b style="{WRONG}">{phrase("notebook.run_cannot_start")}</b><ul>{listed}</ul>'
        return f'<div style="{DENSE}">{text}</div>'
    notes = "".join(f"<br>{_quiet(html.escape(redact(n)))}" for n in state.config.notes())
    if is_refuted:
        return f'<b style="{WRONG}">{phrase("notebook.run_refuted")}</b>{notes}'
    return f'<b style="{RIGHT}">{phrase("notebook.run_can_start")}</b>{notes}'


def _line(state: FormState) -> str:
    """Return the changes as code for the cell: a saved notebook contains no form values."""
    changes = state.changes()
    if not changes:
        return ""
    settings = ", ".join(f'"{key}": {redact(repr(value))}' for key, value in changes.items())
    code = html.escape(f"configure(..., **{{{settings}}})")
    return _quiet(f"{phrase('notebook.keep_changes')} <code>{code}</code>")
