"""Built-in and user-defined reward functions for GRPO and RLOO.

A reward function has TRL's interface. It takes `prompts`, `completions` and each column of the rows
by name, with one value per completion, and returns one number per completion (None: no score). This
does not import torch.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import wraps
from numbers import Real
from pathlib import Path
from typing import Any

from infrastructure.core.errors import InputError
from infrastructure.core.json_text import parse_json
from infrastructure.core.lookup import unknown_name
from infrastructure.core.named_object import is_address, load_object
from infrastructure.core.optional import require

EXACT, FORMAT, SCHEMA = "exact_answer", "format", "json_schema"
BUILT_IN = (EXACT, f"{FORMAT}=REGEX", f"{SCHEMA}=FILE")
NUM_ALONE = 4  # rows of the second call, as in a small batch
MARK = "####"  # precedes the final answer, as in GSM8K

Reward = Callable[..., Sequence[float | None]]


def reward_functions(names: Sequence[str]) -> list[Reward]:
    """Return the functions that the setting `training.rewards` names.

    Raises:
        ValueError: a reward does not exist or cannot be loaded. The message says what to do.
    """
    if not names:
        raise InputError("methods.no_rewards", built_in=", ".join(BUILT_IN))
    return [reward_function(name) for name in names]


def reward_function(name: str) -> Reward:
    """Return the reward function with this name. It raises the same errors as
    `reward_functions`.
    """
    kind, has_value, value = name.partition("=")
    if kind == EXACT and not has_value:
        return exact_answer
    if kind == FORMAT and value:
        return matches(value)
    if kind == SCHEMA and value:
        return fits_schema(Path(value))
    if kind in (FORMAT, SCHEMA):
        raise InputError("methods.reward_without_value", kind=kind)
    if not is_address(name):
        known = [EXACT, FORMAT, SCHEMA]
        raise InputError("methods.unknown_reward", reason=unknown_name("reward", name, known))
    function = load_object("reward", name)
    if not callable(function):
        raise InputError("methods.reward_not_callable", name=name)
    return function


def text_of(completion: Any) -> str:
    """Return the text of a completion, which may be a string or a list of messages."""
    if isinstance(completion, str):
        return completion
    return "".join(str(message.get("content") or "") for message in completion)


def exact_answer(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Return 1 for each completion that equals its row's answer apart from whitespace, else 0.

    If a text contains ####, only the part after its last #### is compared.
    """
    pairs = zip(completions, answer, strict=True)
    return [float(_bare(text_of(given)) == _bare(wanted)) for given, wanted in pairs]


def _bare(text: str) -> str:
    return " ".join(text.rpartition(MARK)[2].split())


def matches(pattern: str) -> Reward:
    """Return a reward function: 1 if a regular expression matches the whole completion, else 0.

    A dot matches any character. Whitespace around the completion is ignored.

    Raises:
        ValueError: the pattern is not a valid regular expression.
    """
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise InputError(
            "methods.reward_regex_invalid",
            kind=FORMAT,
            pattern=pattern,
            error=error,
        ) from error

    def format_matches(completions: Sequence[Any], **_: Any) -> list[float]:
        return [float(bool(compiled.fullmatch(text_of(one).strip()))) for one in completions]

    return format_matches


def fits_schema(file: Path) -> Reward:
    """Return a reward function: 1 if a completion is JSON that fits a schema, else 0.

    Args:
        file: contains the JSON schema.

    Raises:
        ValueError: the file is missing, or does not contain a JSON schema.
        MissingPackageError: jsonschema is not installed.
    """
    if not file.is_file():
        raise InputError("methods.reward_schema_missing", file=str(file))
    jsonschema = require("jsonschema", f"the reward {SCHEMA}")
    try:
        schema = parse_json(file.read_text())
        validator_class = jsonschema.validators.validator_for(schema)
        validator_class.check_schema(schema)
    except (ValueError, jsonschema.SchemaError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError("methods.reward_schema_invalid", file=file, reason=reason) from error

    def json_fits(completions: Sequence[Any], **_: Any) -> list[float]:
        validator = validator_class(schema)
        return [float(_fits(text_of(one), validator)) for one in completions]

    return json_fits


def _fits(text: str, validator: Any) -> bool:
    try:
        return bool(validator.is_valid(parse_json(text)))
    except ValueError:
        return False


def needs_answers(names: Sequence[str]) -> bool:
    """Return whether one of these rewards compares completions with the rows' answers."""
    return EXACT in names


def given_values(function: Reward, carried: frozenset[str]) -> Reward:
    """Wrap a reward function so that it gets the parsed values of columns that are stored as JSON
    text.
    """
    if not carried:
        return function

    @wraps(function)
    def reward(**given: Any) -> Sequence[float | None]:
        read = {name: [*map(parse_json, given[name])] for name in carried & given.keys()}
        return function(**{**given, **read})

    return reward


def try_rewards(names: Sequence[str], functions: Sequence[Reward], rows: list[Any]) -> None:
    """Call each reward function with the answers of some rows, in the way TRL does.

    Each function is called with all rows, and again with only the first few.

    Raises:
        ValueError: a function fails or does not return one number per completion, or no function
            scores any answer. The message says which function, and what it returned.
    """
    for tried in (rows, rows[:NUM_ALONE]):
        _try(names, functions, tried)


def _try(names: Sequence[str], functions: Sequence[Reward], rows: list[Any]) -> None:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    prompts = columns.pop("prompt")
    is_chat = not isinstance(prompts[0], str)
    answers = columns.get("answer", [""] * len(rows))
    completions = [[{"role": "assistant", "content": a}] if is_chat else a for a in answers]
    given = {"prompts": prompts, "completions": completions, "completion_ids": [[0]] * len(rows)}
    silent = []
    for name, function in zip(names, functions, strict=True):
        try:
            rewards = function(**given, **columns, trainer_state=None)
        except Exception as error:  # user code may raise anything
            raise InputError(
                "methods.reward_raised",
                name=name,
                error_type=type(error).__name__,
                error=error,
                arguments=", ".join([*given, *columns, "trainer_state"]),
            ) from error
        _check_numbers(name, rewards, len(rows))
        silent += [name] if all(reward is None for reward in rewards) else []
    if "answer" in columns and len(rows) > NUM_ALONE and silent == list(names):
        raise InputError("methods.rewards_all_none", names=" and ".join(silent), count=len(rows))


def _check_numbers(name: str, rewards: Any, count: int) -> None:
    if not isinstance(rewards, Sequence) or len(rewards) != count:
        raise InputError(
            "methods.reward_not_a_list",
            name=name,
            returned=_length_of(rewards),
            count=count,
        )
    for reward in rewards:
        is_number = isinstance(reward, Real) and math.isfinite(reward)
        if reward is not None and not is_number:
            raise InputError("methods.reward_not_a_number", name=name, reward=reward)


def _length_of(rewards: Any) -> str:
    name = type(rewards).__name__
    return f"{name} of {len(rewards)}" if isinstance(rewards, Sequence) else name
