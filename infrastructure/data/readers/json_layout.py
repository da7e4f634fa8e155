"""Detection of how the rows of a JSON document are laid out.

| layout | looks like | written by |
| --- | --- | --- |
| array | `[row, row]` | `json.dump(rows)` |
| list | `{"data": [row, row]}` | SQuAD, APIs |
| splits | `{"train": [row, row], "test": [row]}` | `datasets`, scripts that split data |
| objects | `row row` | `jq .`, logs |
| records | `{"0": row, "1": row}` | pandas with `orient="index"` |
| columns | `{"question": [...], "answer": [...]}` | `to_dict("list")`, pandas' `to_json()` |
| one row | `row` | a saved chat |
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

DATA_KEY = "data"
TRAIN_KEY = "train"
HELD_OUT_KEYS = ("validation", "valid", "val", "dev", "eval", "test")  # the first that exists
LIST_KEYS = (DATA_KEY, TRAIN_KEY, "rows", "examples", "items", "records", "samples", "instances")
MESSAGE_KEYS = ("role", "from", "author", "parts")
MOST_COLUMNS = 1000  # an object with more values is not a row
HUB_ROW = {"row_idx", "row"}


class Layout(Enum):
    """A layout of the rows in a JSON document."""

    ARRAY = "array"
    LIST = "list"
    OBJECTS = "objects"
    RECORDS = "records"
    COLUMNS = "columns"
    ONE_ROW = "one row"


def is_one_row(value: Mapping[str, object]) -> bool:
    """Return whether a document's only object is a single row."""
    return list_of_rows(value) is None and layout_of_object(value) is Layout.ONE_ROW


def layout_of_object(value: Mapping[str, object]) -> Layout:
    """Return the layout of a document that consists of one object."""
    if not value:
        return Layout.ONE_ROW
    if len(value) > MOST_COLUMNS:
        return Layout.RECORDS
    inner = list(value.values())
    if _is_split(value) or _are_columns(inner) or _are_numbered(inner):
        return Layout.COLUMNS
    objects = [item for item in inner if isinstance(item, dict) and item]
    are_alike = len({*map(frozenset, objects)}) == 1 and len(objects[0]) > 1
    has_ids = len(inner) > 1 or next(iter(value)).isdigit()
    are_messages = any(key in item for item in objects for key in MESSAGE_KEYS)
    if len(objects) == len(inner) and are_alike and has_ids and not are_messages:
        return Layout.RECORDS
    return Layout.ONE_ROW


def list_of_rows(value: Mapping[str, object]) -> str | None:
    """Return the key in a JSON object that holds the list of rows; None if there is none.

    The key has one of the known names, or its value is the only list of objects that are not
    messages, and no other value is a list or an object.
    """
    lists = [key for key, item in value.items() if is_list_of_rows(item)]
    known = [key for key in LIST_KEYS if key in lists]
    if DATA_KEY in value and value[DATA_KEY] == []:
        return DATA_KEY
    if known:
        return known[0]
    others = [item for key, item in value.items() if key not in lists]
    if len(lists) == 1 and not any(isinstance(item, dict | list) for item in others):
        return lists[0]
    return None


def is_list_of_rows(value: object) -> bool:
    """Return whether a value is a list of objects that are not messages."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return False
    return not any(key in value[0] for key in MESSAGE_KEYS)


def _is_split(value: Mapping[str, object]) -> bool:
    columns, rows = value.get("columns"), value.get(DATA_KEY)
    return isinstance(columns, list) and isinstance(rows, list) and _are_lists(rows)


def _are_lists(values: Sequence[object]) -> bool:
    return bool(values) and all(isinstance(item, list) for item in values)


def _are_columns(inner: Sequence[object]) -> bool:
    """Return whether the values are the columns of a table: lists of equal length, without objects.

    If there is only one list, it must contain lists; otherwise the object is a row, such as a chat.
    """
    if not _are_lists(inner):
        return False
    lists = [item for item in inner if isinstance(item, list)]
    if len({len(item) for item in lists}) != 1 or not lists[0]:
        return False
    held = [part for item in lists for part in item[:1]]
    is_chat = len(lists) == 1 and not isinstance(held[0], list)
    return not is_chat and not any(isinstance(part, dict) for part in held)


def _are_numbered(inner: Sequence[object]) -> bool:
    """Return whether all values are objects with the same, numeric keys: {"0": ..., "1": ...}."""
    keys = [list(item) for item in inner if isinstance(item, dict) and item]
    if len(keys) != len(inner):
        return False
    return all(each == keys[0] for each in keys) and all(key.isdigit() for key in keys[0])


def rows_of_columns(value: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yield the rows of a table that is stored by column."""
    if _is_split(value):
        names, rows = value["columns"], value[DATA_KEY]
        assert isinstance(names, list)
        assert isinstance(rows, list)
        yield from (dict(zip(map(str, names), row, strict=False)) for row in rows)
        return
    columns = {
        key: list(item.values()) if isinstance(item, dict) else item for key, item in value.items()
    }
    lists = {key: item for key, item in columns.items() if isinstance(item, list)}
    yield from (
        dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)
    )


def unwrapped(value: object) -> object:
    """Return the row inside `value`, if it is wrapped as by the Hub's API; other values
    unchanged.
    """
    if isinstance(value, dict) and value.keys() >= HUB_ROW and isinstance(value["row"], dict):
        return value["row"]
    return value


def has_paragraphs(value: object) -> bool:
    """Return whether an element holds passages, each with questions, as in SQuAD."""
    paragraphs = value.get("paragraphs") if isinstance(value, dict) else None
    first = paragraphs[0] if isinstance(paragraphs, list) and paragraphs else None
    return isinstance(first, dict) and isinstance(first.get("qas"), list)


def questions_in(value: object) -> Iterator[dict[str, object]]:
    """Yield one row per question in a SQuAD element: the question's fields and its passage."""
    paragraphs = value.get("paragraphs") if isinstance(value, dict) else None
    for paragraph in paragraphs if isinstance(paragraphs, list) else ():
        if not isinstance(paragraph, dict):
            continue
        questions = paragraph.get("qas")
        for question in questions if isinstance(questions, list) else ():
            if isinstance(question, dict):
                yield {**question, "context": paragraph.get("context")}
