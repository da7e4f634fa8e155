"""The spelling of settings in messages: as flags, as keywords, or as keys of a file.

An entry point (the command line, `temper.train`, a notebook) sets the spelling while it is active.
A message about a given value spells the setting in the way it was given.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from infrastructure.config.base import kinds
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import is_truth, keyword_of
from infrastructure.core.errors import Problem
from infrastructure.core.messages import ARGUMENTS, Message, Speller, as_key, spelled_by

_FIELDS = schema_of(DeploymentConfig).fields
# Arguments of functions, if the first name of the flag is a different one.
_KEYWORDS = {"data.path": "data", "output_dir": "output_dir", "training.rewards": "rewards"}


def as_keyword(key: str, value: str = "") -> str:
    """Return a setting as in Python: `batch_size=4`, `lora=False`."""
    if key == "accept" and value:
        return f"accept={json.dumps(value.split(','), ensure_ascii=False)}"
    if key in ARGUMENTS:
        literal = value if value.isdigit() else json.dumps(value, ensure_ascii=False)
        return f"{key}={literal}" if value else key
    if key not in _FIELDS:
        return as_key(key, value)
    name = _KEYWORDS.get(key) or keyword_of(key)
    return f"{name}={_literal(key, value)}" if value else name


def _literal(key: str, value: str) -> str:
    """Return a value as a Python literal."""
    types = kinds(_FIELDS[key].info.annotation)
    if value in ("true", "false") and (bool in types or is_truth(_FIELDS[key])):
        return value.capitalize()
    if value == "none" and type(None) in types:
        return "None"
    is_number = value.replace(".", "", 1).replace("e-", "", 1).isdigit() and types & {int, float}
    return value if is_number else json.dumps(value, ensure_ascii=False)


@contextmanager
def speaking(spell: Speller) -> Iterator[None]:
    """Inside the block, spell settings in messages with `spell`.

    This includes the text of an error that leaves the block.
    """
    with spelled_by(spell):
        try:
            yield
        except Problem as error:
            error.message = Message(str(error))
            raise
