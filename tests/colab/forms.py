"""Forms as somebody uses them in a browser: what is typed, and what is shown."""

import json

from ipywidgets.embed import dependency_state, embed_data

from colab.field_widgets import FieldRow, shown_as
from colab.form import ConfigForm


def row_of(form: ConfigForm, key: str) -> FieldRow:
    return form.make_view().rows[key]


def type_into(form: ConfigForm, key: str, text: str) -> None:
    """What the browser does when somebody has typed or chosen."""
    field = row_of(form, key).input
    field.value = shown_as(field.value, text)


def boxes_of(form: ConfigForm) -> list[object]:
    """All widgets that a form shows, those of closed groups too."""
    boxes: list[object] = [form.make_view().box]
    for box in boxes:
        boxes += getattr(box, "children", ())
    return boxes


def note_of(form: ConfigForm, key: str) -> str:
    """What stands beside a field."""
    return str(row_of(form, key).box.children[-1].value)


def shown(form: ConfigForm) -> str:
    """All that the browser is given of a form."""
    box = form.make_view().box
    return json.dumps(embed_data(views=[box], state=dependency_state([box])), default=str)
