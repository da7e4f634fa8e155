"""One setting of a form, with its name, its input, its description and its error.

Only widgets that exist in ipywidgets 7 and 8 are used. Numbers are typed as text, because a widget
for bounded numbers would silently change a number to its bound. Only a setting with two natural
bounds has a slider. The slider sets a value only after the user has moved it.
"""

import html
from collections.abc import Callable
from typing import Any

from colab.form_labels import label_of
from infrastructure.config.field_help import choices, words_taken
from infrastructure.config.merging.precedence import Layer, Source
from infrastructure.config.schema import FieldSpec
from infrastructure.core.optional import require

NAME_WIDTH, INPUT_WIDTH, HELP_WIDTH = "18em", "15em", "15em"  # minimum width of the help
WRONG = "color:#d93025"
QUIET = "opacity:.65;font-size:90%"
# Settings with two natural ends, and a sufficiently fine step: first, last, step, format.
SLIDERS = {
    **dict.fromkeys(
        ("model.lora_config.dropout", "training.qlora_dropout", "data.validation_split"),
        (0.0, 0.99, 0.01, ".2f"),
    ),
    "max_memory_percent": (0.0, 100.0, 1.0, ".0f"),
}
DENSE = "line-height:1.35"  # ipywidgets gives every line of text the height of an input


def ipywidgets() -> Any:
    """Return the package ipywidgets, which is imported on first use.

    Raises:
        MissingPackageError: if it is not installed.
    """
    return require("ipywidgets", "a form")


class FieldRow:
    """The row of one setting.

    Args:
        entered: a function that is called with the key and the text that the user has typed or
            chosen.
        make: a function that makes a widget; see `Maker`.

    Attributes:
        box: the widget of the row.
        input: the widget in which the user enters the value.
    """

    def __init__(self, spec: FieldSpec, entered: Callable[[str, str], None], make: "Maker") -> None:
        self.spec = spec
        self.input = _input_of(spec, make)
        self._notes = make("HTML", "notes")
        name = make("HTML", "name", value=_name_of(spec))
        self.box = make("HBox", "row", children=[name, self.input, self._notes])
        self._entered = entered
        self._is_drawing = False
        self.input.observe(self._on_change, names="value")

    def draw(self, text: str, source: Source, message: str | None, is_absent: bool) -> None:
        """Show the current value of the setting, its source, and its error if there is one."""
        self._is_drawing = True
        try:
            self.input.value = shown_as(self.input.value, text)
            self.input.disabled = is_absent
            self._notes.value = _notes_of(self.spec, source, message)
        finally:
            self._is_drawing = False

    def _on_change(self, change: Any) -> None:
        if self._is_drawing:
            return
        value = change["new"]
        text = ("true" if value else "false") if isinstance(value, bool) else str(value)
        self._entered(self.spec.key, text)


class Maker:
    """A factory of widgets that share their layouts and styles.

    Without sharing, the browser would create a layout object and a style object for each of
    hundreds of rows.
    """

    def __init__(self) -> None:
        layout = ipywidgets().Layout
        self._layouts = {
            "name": layout(width=NAME_WIDTH, min_width=NAME_WIDTH),
            "input": layout(width=INPUT_WIDTH, min_width=INPUT_WIDTH),
            "notes": layout(flex=f"1 1 {HELP_WIDTH}", margin="0 0 0 1em"),
            "row": layout(align_items="center", width="100%", flex_flow="row wrap"),
        }
        self._styles: dict[str, object] = {}

    def __call__(self, kind: str, part: str, **traits: object) -> Any:
        """Create a widget of the class `kind` for one part of a row."""
        shared = {"style": self._styles[kind]} if kind in self._styles else {}
        widget = getattr(ipywidgets(), kind)(layout=self._layouts[part], **shared, **traits)
        if hasattr(widget, "style"):
            self._styles[kind] = widget.style
        return widget


def _input_of(spec: FieldSpec, make: Maker) -> Any:
    """Create the input widget: a checkbox, a list of choices, a slider or a text field."""
    words = choices(spec.info)
    if spec.is_switch or set(words) == {"true", "false"}:
        return make("Checkbox", "input", value=False, indent=False)
    if words:
        return make("Dropdown", "input", options=words)
    if spec.key in SLIDERS:
        names = ("min", "max", "step", "readout_format")
        ends = dict(zip(names, SLIDERS[spec.key], strict=True))
        return make("FloatSlider", "input", continuous_update=False, **ends)
    if known := words_taken(spec.info):
        line = {"options": tuple(known), "ensure_option": False, "continuous_update": False}
        return make("Combobox", "input", **line)
    return make("Text", "input", continuous_update=False)


def shown_as(value: object, text: str) -> object:
    """Convert a text to the type of `value`, the current value of an input widget."""
    if isinstance(value, bool):
        return text == "true"
    return float(text) if isinstance(value, float) else text


def _name_of(spec: FieldSpec) -> str:
    """Return the label as HTML. It shows the key of the setting on hover."""
    return f'<span title="{html.escape(spec.key)}">{html.escape(label_of(spec.key))}</span>'


def _notes_of(spec: FieldSpec, source: Source, message: str | None) -> str:
    """Return as HTML the description, the source if it is not the default, and any error."""
    parts = [f'<span style="{QUIET}">{html.escape(spec.description)}</span>']
    if source.layer is not Layer.DEFAULT:
        parts.append(f'<span style="{QUIET}">· <i>{html.escape(source.place)}</i></span>')
    if message is not None:
        parts.append(f'<br><b style="{WRONG}">{html.escape(message)}</b>')
    return f'<div style="{DENSE}">{" ".join(parts)}</div>'
