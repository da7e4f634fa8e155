"""A parser of lists and objects in Python's printed form: `[{'role': 'user', 'content': …}]`.

pandas writes this form into a CSV file for a column of lists. Nothing is executed: only literals
that JSON also has are accepted.
"""

import ast
import itertools
import re
import tokenize
import warnings
from io import StringIO

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import MAX_DEPTH, JsonValue, is_too_deep, too_deep

MAX_CHARACTERS = 1 << 18  # the syntax tree takes a hundred times the length
BRACKETS = re.compile(r"[][(){}]")
JOINS = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)


def parse_python(text: str) -> JsonValue:
    """Return the value of a printed Python list or dict.

    Raises:
        ValueError: the text is not a list or dict, or contains values that JSON does not have.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError("data.python_text_too_long", max_characters=MAX_CHARACTERS)
    text = text.strip()
    if _depth(text) > MAX_DEPTH:
        raise ValueError(too_deep())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes
            value = ast.literal_eval(text)
        if _has_neighbours(text):
            raise InputError("data.python_strings_without_comma")
    except InputError:
        raise
    except (
        ValueError,
        SyntaxError,
        TypeError,
        RecursionError,
        MemoryError,
        tokenize.TokenError,
    ) as error:
        raise InputError("data.not_a_printed_list", error_type=type(error).__name__) from error
    read = _as_json(value)
    if is_too_deep(read):  # tuples have become lists
        raise ValueError(too_deep())
    return read


def _depth(text: str) -> int:
    """Return the nesting depth of brackets, counting those inside strings, too."""
    steps = (1 if one in "[{(" else -1 for one in BRACKETS.findall(text))
    return max(itertools.accumulate(steps, initial=0))


def _has_neighbours(text: str) -> bool:
    """Return whether the text has two adjacent strings, which Python would join into one."""
    tokens = tokenize.generate_tokens(StringIO(text).readline)
    kinds = [token.type for token in tokens if token.type not in JOINS]
    return (tokenize.STRING, tokenize.STRING) in itertools.pairwise(kinds)


def _as_json(value: object) -> JsonValue:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str(key): _as_json(one) for key, one in value.items()}
    raise InputError("data.no_json_equivalent", type_name=type(value).__name__)
