"""A sentence about settings in the language of whoever gave them.

Sentences name a setting by its key, as files, forms and `temper config` do, and end in the place
where its value was given. Who typed a flag reads of that flag, and who called a function, of its
keyword. Where a file gave the values, what helps is written there too, so that keys stay keys.
"""

import re
from collections.abc import Callable
from functools import cache

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.environment import key_of_variable
from infrastructure.config.sources.flags import flag_names, is_truth, key_of_flag, keyword_of

_FIELDS = schema_of(DeploymentConfig).fields
_VALUE = r"""(?: ?= ?(?P<value>"[^"]*"|'[^']*'|[\w.+-]*\w)|: (?P<in_file>\w+)(?= and | here))?"""
_FROM_FILE = re.compile(r"\.ya?ml\b")
_TYPED = re.compile(r" ?\((?P<place>--[a-z][\w-]*)\)")
_POSITIONAL = re.compile(r" ?\(argument (?P<key>[\w.]+)\)")
_VARIABLE = re.compile(r" ?\(environment (?P<place>\w+)\)")
_KEYWORD = re.compile(r" ?\(keyword [\w.]+\)")
_FLAG = re.compile(r"(?<![\w-])(?P<flag>--[a-z][a-z-]*)")
_ARGUMENTS = {"--max-tokens": "max_tokens"}  # of commands and functions, and no settings
_WORDS = {"data.path": "DATA", "model.name": "MODEL"}  # of a command line, without a flag

Spell = Callable[[str, str | None], str | None]


def in_flags(sentence: str) -> str:
    """As a command line spells it: `--batch-size must be …, not "many"`."""
    typed = {key_of_flag(match["place"]): match["place"] for match in _TYPED.finditer(sentence)}
    typed |= {m["key"]: _WORDS.get(m["key"], m["key"]) for m in _POSITIONAL.finditer(sentence)}
    variables = {key_of_variable(m["place"]): m["place"] for m in _VARIABLE.finditer(sentence)}
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

    text = _translated(sentence, spell)
    named = _TYPED.sub("", text)
    text = _TYPED.sub(lambda place: "" if place["place"] in named else place[0], text)
    named = _VARIABLE.sub("", text)
    text = _VARIABLE.sub(lambda place: "" if place["place"] in named else place[0], text)
    return _POSITIONAL.sub("", text)


def in_keywords(sentence: str) -> str:
    """As Python spells it: `batch_size must be …, not 0`."""
    if _FROM_FILE.search(sentence):
        return sentence

    def spell(key: str, value: str | None) -> str:
        if value is not None and is_truth(_FIELDS[key]):
            value = value.capitalize()
        return keyword_of(key) + (f"={value}" if value is not None else "")

    def of_flag(match: re.Match[str]) -> str:
        key = key_of_flag(match["flag"])
        if key not in _FIELDS:
            return _ARGUMENTS.get(match["flag"], match[0])
        is_off = match["flag"].startswith("--no-")
        return keyword_of(key) + (f"={not is_off}" if is_truth(_FIELDS[key]) else "")

    return _KEYWORD.sub("", _FLAG.sub(of_flag, _translated(sentence, spell)))


def in_keys(sentence: str) -> str:
    """As a configuration file and `DeploymentConfig` spell it: `training.num_epochs 12`."""
    return _FLAG.sub(lambda match: key_of_flag(match["flag"]) or match[0], sentence)


def _translated(sentence: str, spell: Spell) -> str:
    def spelt(match: re.Match[str]) -> str:
        return spell(match["key"], match["value"] or match["in_file"]) or match[0]

    return _keys().sub(spelt, sentence)


@cache
def _keys() -> re.Pattern[str]:
    """A key where it stands by itself; one that is a plain word, such as `device`, only where a
    sentence begins with it."""
    names = sorted(_FIELDS, key=len, reverse=True)
    clear = "|".join(re.escape(key) for key in names if "." in key or "_" in key)
    plain = "|".join(key for key in names if "." not in key and "_" not in key)
    key = rf"(?P<key>(?<![\w./'-])(?:{clear})|(?:^|(?<=; ))(?:{plain})(?= must | = ))"
    return re.compile(rf"{key}(?![\w/]|\.\w){_VALUE}")
