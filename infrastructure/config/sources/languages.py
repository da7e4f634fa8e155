"""A sentence about settings in the language of whoever gave them.

Sentences name a setting by its key, as files, forms and `temper config` do, and end in the place
where its value was given. Who typed a flag reads of that flag, and who called a function, of its
keyword. Where a file gave the values, what helps is written there too, so that keys stay keys.

Nothing of a person or of data is respelled: a name that one of `core.user_text` holds stays as it
is, wherever in a sentence it stands.
"""

import json
import re
from collections.abc import Callable
from functools import cache

from infrastructure.config.base import kinds
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import words_taken
from infrastructure.config.schema import FieldSpec, schema_of
from infrastructure.config.sources.environment import key_of_variable
from infrastructure.config.sources.flags import (
    all_flags,
    flag_names,
    is_truth,
    key_of_flag,
    keyword_of,
)
from infrastructure.core.user_text import user_texts

_FIELDS = schema_of(DeploymentConfig).fields
_VALUE = r"""(?: ?= ?(?P<value>"[^"]*"|'[^']*'|[\w.+/-]*\w)|: (?P<in_file>\w+)(?= and | here))?"""
_FROM_FILE = re.compile(r"\.ya?ml\b")
_TYPED = re.compile(r" ?\((?P<place>--[a-z][\w-]*)\)")
_POSITIONAL = re.compile(r" ?\(argument (?P<key>[\w.]+)\)")
_VARIABLE = re.compile(r" ?\(environment (?P<place>\w+)\)")
_KEYWORD = re.compile(r" ?\(keyword [\w.]+\)")
_FLAG = re.compile(r"(?<![\w-])(?P<flag>--[a-z][a-z-]*)")
_FLAG_AND_WORD = re.compile(rf"{_FLAG.pattern}(?: (?P<value>[\w.+-]*\w))?")
_COMMAND = re.compile(r"`temper (?P<name>train) (?:DATA )?(?P<flags>--[^`]*)`")
_ACCEPT = re.compile(r"--accept ((?:'[^']*'|[\w.,]*\w)(?: --accept [\w.,]*\w)*)")
_MEANT = re.compile(r"(?<=did you mean ')(?P<key>[\w.]+)(?=')")
_UNKNOWN = re.compile(r"\bunknown key (?='\w+')")
# How begins what is respelled beside names: of each pattern a part that all its matches have.
_BEGINNINGS = {
    _TYPED: "(--",
    _POSITIONAL: "(argument ",
    _VARIABLE: "(environment ",
    _KEYWORD: "(keyword ",
    _COMMAND: "`temper train ",
    _ACCEPT: "--accept",
    _UNKNOWN: "unknown key ",
}
# of commands and functions, and no settings
_ARGUMENTS = {"--accept": "accept", "--max-tokens": "max_tokens", "--preset": "preset"}
# of functions, where the first name of the flag is another one
_KEYWORDS = {"data.path": "data", "output_dir": "output_dir", "training.rewards": "rewards"}
_WORDS = {"data.path": "DATA", "model.name": "MODEL"}  # of a command line, without a flag

Spell = Callable[[str, str | None], str | None]
Replace = Callable[[re.Match[str]], str]


def in_flags(sentence: str) -> str:
    """As a command line spells it: `--batch-size must be …, not "many"`."""
    spared = _spared()
    typed = {key_of_flag(m["place"]): m["place"] for m in _matches(_TYPED, sentence, spared)}
    positional = _matches(_POSITIONAL, sentence, spared)
    typed |= {m["key"]: _WORDS.get(m["key"], m["key"]) for m in positional}
    named = _matches(_VARIABLE, sentence, spared)
    variables = {key_of_variable(m["place"]): m["place"] for m in named}
    keeps_keys = _FROM_FILE.search(sentence) is not None

    def spell(key: str, value: str | None) -> str | None:
        if key in variables:
            return variables[key] + (f"={value}" if value is not None else "")
        if keeps_keys and key not in typed:
            return None
        name = typed.get(key) or flag_names(key)[0]
        if is_truth(_FIELDS[key]):
            is_off = value == "false" and not name.startswith("--no-")
            return f"--no-{name.removeprefix('--')}" if is_off else name
        return name if value is None else f"{name} {value}"

    text = _translated(sentence, spell, spared)
    text = _place_once(_VARIABLE, _place_once(_TYPED, text, spared), spared)
    return _respelled(_POSITIONAL, lambda _: "", text, spared)


def _place_once(pattern: re.Pattern[str], text: str, spared: frozenset[str]) -> str:
    """Leave out the place of a value where the sentence names it already."""
    rest = _respelled(pattern, lambda _: "", text, spared)
    return _respelled(pattern, lambda m: "" if m["place"] in rest else m[0], text, spared)


def in_keywords(sentence: str) -> str:
    """As Python spells it, with values that can be typed: `batch_size must be …, not 0`, `set
    prompt_column="question"`, `add accept=["max_steps"]`."""
    spared = _spared()
    text = sentence
    if _FROM_FILE.search(sentence) is None:
        text = _translated(sentence, _as_keyword, spared)
        text = _respelled(_KEYWORD, lambda _: "", text, spared)
        text = _respelled(_UNKNOWN, lambda _: "unknown keyword ", text, spared)
        text = _respelled(
            _MEANT, lambda m: _keyword(m["key"]) if m["key"] in _FIELDS else m[0], text, spared
        )
    text = _respelled(
        _COMMAND, lambda command: f"{command['flags']} in temper.{command['name']}", text, spared
    )
    text = _respelled(_ACCEPT, _as_list, text, spared)
    return _respelled(_FLAG_AND_WORD, _flag_as_keyword, text, spared)


def _matches(
    pattern: re.Pattern[str], sentence: str, spared: frozenset[str]
) -> list[re.Match[str]]:
    """Where a sentence has what may be respelled: neither the words nor a name of a person."""
    if _BEGINNINGS.get(pattern) in spared:
        return []
    names = [name for name in ("key", "flag", "place") if name in pattern.groupindex]
    matches = pattern.finditer(sentence)
    return [match for match in matches if spared.isdisjoint(match[name] for name in names)]


def _respelled(
    pattern: re.Pattern[str], replace: Replace, sentence: str, spared: frozenset[str]
) -> str:
    """The only function that changes a sentence."""
    for match in reversed(_matches(pattern, sentence, spared)):
        sentence = sentence[: match.start()] + replace(match) + sentence[match.end() :]
    return sentence


def _spared() -> frozenset[str]:
    """Names and beginnings that some text of a person or of data holds."""
    return frozenset().union(*map(_names_in, user_texts()))


@cache
def _names_in(text: str) -> frozenset[str]:
    """As parts of it: what is shown of a text may begin and end anywhere, and on another line."""
    texts = (text, " ".join(text.split()))
    return frozenset(name for name in _all_names() if any(name in each for each in texts))


@cache
def _all_names() -> tuple[str, ...]:
    return (*_FIELDS, *all_flags(), *_ARGUMENTS, *_BEGINNINGS.values())


def _as_keyword(key: str, value: str | None) -> str:
    return _keyword(key) + (f"={_literal(key, value)}" if value is not None else "")


def _keyword(key: str) -> str:
    return _KEYWORDS.get(key) or keyword_of(key)


def _flag_as_keyword(match: re.Match[str]) -> str:
    """A flag, with the word behind it where that is a value and does not go on with the text."""
    flag, word = match["flag"], match["value"]
    key = key_of_flag(flag)
    if key not in _FIELDS:
        return match[0].replace(flag, _ARGUMENTS.get(flag, flag))
    rest = f" {word}" if word else ""
    if is_truth(_FIELDS[key]):
        return f"{_keyword(key)}={not flag.startswith('--no-')}{rest}"
    if word is None or not _is_value(_FIELDS[key], word):
        return f"{_keyword(key)}{rest}"
    comma = "," if match.string[match.end() :].startswith((" --", " accept=")) else ""
    return _as_keyword(key, word) + comma


def _is_value(spec: FieldSpec, word: str) -> bool:
    return _is_number(word) or word in words_taken(spec.info)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return word[-1].isdigit()  # neither nan nor inf, which are no names of Python


def _literal(key: str, value: str) -> str:
    """What a sentence shows of a value, as Python writes it."""
    types = kinds(_FIELDS[key].info.annotation)
    if value in ("true", "false") and (bool in types or is_truth(_FIELDS[key])):
        return value.capitalize()
    if value == "none" and type(None) in types:
        return "None"
    is_text = value[0] not in "\"'" and (not _is_number(value) or not types & {int, float})
    return f'"{value}"' if is_text else value


def _as_list(match: re.Match[str]) -> str:
    if match[1].startswith("'"):  # as somebody has spelled it
        return f"accept={json.dumps([match[1][1:-1]], ensure_ascii=False)}"
    names = re.findall(r"[\w.]+", match[1].replace("--accept", ""))
    return f"accept={json.dumps(names)}"


def in_keys(sentence: str) -> str:
    """As a configuration file and `DeploymentConfig` spell it: `training.num_epochs 12`."""
    return _respelled(_FLAG, lambda m: key_of_flag(m["flag"]) or m[0], sentence, _spared())


def _translated(sentence: str, spell: Spell, spared: frozenset[str]) -> str:
    def spelt(match: re.Match[str]) -> str:
        return spell(match["key"], match["value"] or match["in_file"]) or match[0]

    return _respelled(_keys(), spelt, sentence, spared)


@cache
def _keys() -> re.Pattern[str]:
    """A key where it stands by itself; one that is a plain word, such as `device`, only where a
    sentence begins with it."""
    names = sorted(_FIELDS, key=len, reverse=True)
    clear = "|".join(re.escape(key) for key in names if "." in key or "_" in key)
    plain = "|".join(key for key in names if "." not in key and "_" not in key)
    key = rf"(?P<key>(?<![\w./'-])(?:{clear})|(?:^|(?<=; ))(?:{plain})(?= must | = ))"
    return re.compile(rf"{key}(?![\w/]|\.\w){_VALUE}")
