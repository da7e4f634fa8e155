"""One setting of a form: its name, its input, what it does, and what is wrong with it.

Made of widgets that ipywidgets 7 and 8 have alike. None of them changes a value by itself: numbers
are typed as text, because a bounded number would be moved to its bound without a word.
"""

import html
from collections.abc import Callable
from typing import Any

from infrastructure.config.layers import Layer, Source
from infrastructure.config.schema import FieldSpec
from infrastructure.config.words import choices, words_taken
from infrastructure.core.optional import require

NAME_WIDTH, INPUT_WIDTH = "15em", "19em"
WRONG = "color:#d93025"
QUIET = "opacity:.65;font-size:90%"


def ipywidgets() -> Any:
    """The package, where it is needed first.

    Raises:
        MissingPackageError: it is not installed.
    """
    return require("ipywidgets", "a form")


class FieldRow:
    """The row of one setting.

    Args:
        entered: is told the text that somebody has typed or chosen.
        layouts: shared by all rows, because each layout is an object in the browser too.

    Attributes:
        box: the widget.
        input: the part that is typed into.
    """

    def __init__(
        self, spec: FieldSpec, entered: Callable[[str, str], None], layouts: dict[str, Any]
    ) -> None:
        widgets = ipywidgets()
        self.spec = spec
        self.input = _input_of(spec, layouts["input"])
        self._told = widgets.HTML(layout=layouts["told"])
        name = widgets.Label(value=spec.name, layout=layouts["name"])
        self.box = widgets.HBox([name, self.input, self._told], layout=layouts["row"])
        self._entered = entered
        self._is_drawing = False
        self.input.observe(self._on_change, names="value")

    def draw(self, text: str, source: Source, message: str | None, is_absent: bool) -> None:
        """Show what holds now."""
        self._is_drawing = True
        try:
            is_box = isinstance(self.input.value, bool)
            self.input.value = text == "true" if is_box else text
            self.input.disabled = is_absent
            self._told.value = _told(self.spec, source, message)
        finally:
            self._is_drawing = False

    def _on_change(self, change: Any) -> None:
        if self._is_drawing:
            return
        value = change["new"]
        text = ("true" if value else "false") if isinstance(value, bool) else str(value)
        self._entered(self.spec.key, text)


def make_layouts() -> dict[str, Any]:
    """One layout for each kind of part, to be shared by all rows of a form."""
    layout = ipywidgets().Layout
    return {
        "name": layout(width=NAME_WIDTH, min_width=NAME_WIDTH),
        "input": layout(width=INPUT_WIDTH, min_width=INPUT_WIDTH),
        "told": layout(flex="1 1 auto", margin="0 0 0 1em"),
        "row": layout(align_items="center", width="100%"),
    }


def _input_of(spec: FieldSpec, layout: Any) -> Any:
    """A box to tick, a list to choose from, or a line to type into, with words that it knows."""
    widgets = ipywidgets()
    words = choices(spec.info)
    if spec.is_switch or set(words) == {"true", "false"}:
        return widgets.Checkbox(value=False, indent=False, layout=layout)
    if words:
        return widgets.Dropdown(options=words, layout=layout)
    line = {"value": "", "continuous_update": False, "layout": layout}
    if known := words_taken(spec.info):
        return widgets.Combobox(options=tuple(known), ensure_option=False, **line)
    return widgets.Text(**line)


def _told(spec: FieldSpec, source: Source, message: str | None) -> str:
    """Help, origin where it is not the default, and what is wrong."""
    parts = [f'<span style="{QUIET}">{html.escape(spec.description)}</span>']
    if source.layer is not Layer.DEFAULT:
        parts.append(f'<span style="{QUIET}"><i>({html.escape(source.place)})</i></span>')
    if message is not None:
        parts.append(f'<br><b style="{WRONG}">{html.escape(message)}</b>')
    return " ".join(parts)
