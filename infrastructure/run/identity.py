"""A description of everything that determines the result of a run, as values to save and compare.

Temper's own loop, TRL's methods and `TemperCallback` use it. Each part is a JSON value: settings as
they are, rows and weights as hashes, and user-defined objects by their code and the simple values
in them. Objects that cannot be inspected are reported and not compared. Loads no torch.
"""

import functools
import hashlib
import inspect
import math
import re
import secrets
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

from infrastructure.config.merging.plugin_names import OUR_PACKAGES, code_at
from infrastructure.core.integers import ceil_div
from infrastructure.core.json_text import JsonValue
from infrastructure.core.messages import phrase
from infrastructure.core.named_object import MAIN
from infrastructure.core.redact import redact
from infrastructure.run.compatibility import Difference, Facts, Verdict

# Names of parts. A Trainer may have more, each under its own name.
PART_NAMES = (
    *("data", "held_out_data", "data_transform", "base_model", "model_config", "model_code"),
    *("generation_config", "lora", "tokenizer", "processor", "chat_template", "trainer"),
    *("data_collator", "compute_loss_func", "compute_metrics", "ref_model", "teacher_model"),
    *("reward_funcs", "reward_model", "reward_processing_classes", "callbacks", "extensions"),
    *("optimizer", "lr_scheduler", "early_stopping", "environment_factory", "rollout_func"),
    *("tools", "objects"),
)
HELD_OUT_DATA = "held_out_data"
ROWS = "rows"  # the hash of a part's rows: compared, but not recorded
NUM_EXAMPLES, NUM_HASHED = "num_examples", "num_hashed"  # of a part with rows
BLOCKS, MOST_BLOCKS = "blocks", 1000  # short hashes of blocks of rows, not recorded either
OPTIMIZER = "optimizer"  # its groups are not always known before a checkpoint is loaded
DEEPEST = 6  # levels of nested objects
MOST_SHOWN = 3  # differing values of one part
# Folders of code that a library regenerates for each of its versions.
GENERATED = ("unsloth_compiled_cache",)
INSTALLED = frozenset({"site-packages", "dist-packages", *GENERATED})
# With another version of a library, these may have new keys; the common keys are compared.
OF_LIBRARIES = frozenset(
    {"model_config", "generation_config", "lora", "tokenizer", "processor", "chat_template"}
)


def new_key() -> str:
    """Return a new secret key for hashing rows, because plain hashes of short rows can be
    guessed.
    """
    return secrets.token_hex(32)


def block_size(num_rows: int) -> int:
    """Return the number of rows to hash together, so that there are at most MOST_BLOCKS hashes."""
    return max(1, ceil_div(num_rows, MOST_BLOCKS))


def row_digest(key: str) -> "hashlib.blake2b":
    """Return an empty keyed digest with which rows are hashed."""
    return hashlib.blake2b(key=bytes.fromhex(key), digest_size=32)


def keyed(key: str, text: str) -> str:
    """Return the keyed hash of a text, such as an unkeyed hash of rows."""
    digest = row_digest(key)
    digest.update(text.encode())
    return digest.hexdigest()


@dataclass
class ObjectReader:
    """A converter of objects to JSON values. Objects that behave alike give equal values.

    Args:
        known: a function that returns the JSON value of a special object, such as weights, or None
            for any other object.

    Attributes:
        unseen: descriptions of the objects that cannot be compared.
        packages: the top-level names of installed packages that contain code of the objects.
    """

    known: Callable[[object], JsonValue] = lambda _: None
    unseen: list[str] = field(default_factory=list)
    packages: set[str] = field(default_factory=set)
    _inside: list[int] = field(default_factory=list)

    def read(self, value: object, name: str) -> JsonValue:
        """Return the JSON value of `value`.

        `name` describes in messages where the value was found.
        """
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            return PurePath(value).name if PurePath(value).is_absolute() else value
        if isinstance(value, Enum):
            return self.read(value.value, name)
        if isinstance(value, PurePath):
            return value.name
        if isinstance(value, re.Pattern):
            return [str(value.pattern), value.flags]
        if isinstance(value, bytes):
            return hashlib.sha256(value).hexdigest()
        if (known := self.known(value)) is not None:
            return known
        if id(value) in self._inside or len(self._inside) >= DEEPEST:
            return "…"
        self._inside.append(id(value))
        try:
            return self._read_compound(value, name)
        finally:
            self._inside.pop()

    def _read_compound(self, value: Any, name: str) -> JsonValue:
        if isinstance(value, Mapping):
            return {str(k): self.read(v, f"{name}.{k}") for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.read(v, f"{name}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, Set):
            return sorted((self.read(v, name) for v in value), key=str)
        if isinstance(value, functools.partial):
            given = {"args": list(value.args), **value.keywords}
            return {"partial of": self.read(value.func, name), "given": self.read(given, name)}
        if isinstance(value, types.MethodType):
            return {"method": value.__name__, "of": self.read(value.__self__, name)}
        if isinstance(value, types.FunctionType):
            return {**self.code_of(value, name), **self._bound(value, name)}
        if isinstance(value, type | types.BuiltinFunctionType):
            return self.code_of(value, name)
        if isinstance(value, types.ModuleType):
            return self.code_of_module(value.__name__, name)
        return self._read_instance(value, name)

    def _read_instance(self, value: object, name: str) -> JsonValue:
        code = self.code_of(type(value), name)
        attributes = {} if is_ours(type(value)) else getattr(value, "__dict__", {})
        is_own = "files" in code or "source" in code
        held: dict[str, JsonValue] = {}
        for key, one in attributes.items():
            if is_own or _is_plain(one) or self.known(one) is not None:
                held[key] = self.read(one, f"{name}.{key}")
        if not attributes and not is_own and not is_ours(type(value)):
            self.unseen.append(f"{name} ({type(value).__qualname__})")
        return {**code, "holds": held} if held else code

    def code_of(self, target: Any, name: str) -> dict[str, JsonValue]:
        """Return the name of a function or class, and hashes of its code.

        Code of an installed package is not hashed, because the version of the package identifies
        it.
        """
        module, qualname = str(getattr(target, "__module__", "")), _qualname(target)
        if is_ours(target):
            return {"name": f"{module}:{qualname}"}
        if _is_installed(module):
            self.packages.add(module.partition(".")[0])
            return {"name": f"{module}:{qualname}"}
        if module == MAIN or (code := code_at(f"{module}:{qualname}")) is None:
            return {"name": qualname, **self._source(target, name)}
        files: dict[str, JsonValue] = {code["file"]: code["sha256"], **code.get("imports", {})}
        return {"name": qualname, "files": files, **self._bases(target, name)}

    def code_of_module(self, module: str, name: str) -> JsonValue:
        """Return the name of an installed module; for a user-defined module, hashes of its code."""
        if _is_installed(module) or (code := code_at(f"{module}:")) is None:
            return module
        return {code["file"]: code["sha256"], **code.get("imports", {})}

    def _bases(self, target: object, name: str) -> dict[str, JsonValue]:
        own = [base for base in getattr(target, "__mro__", ())[1:] if base is not object]
        read = [self.code_of(base, name) for base in own if not is_ours(base)]
        return {"bases": [*read]} if read else {}

    def _source(self, target: object, name: str) -> dict[str, JsonValue]:
        """Return hashes of an object's source and of all user-defined code that it uses.

        For a class, the source of each method is hashed, because the source of a whole class is not
        available in a notebook.
        """
        functions = dict(_functions_of(target))
        texts: dict[str, JsonValue] = {}
        for each, function in functions.items():
            try:
                text = inspect.cleandoc(inspect.getsource(function))
            except (OSError, TypeError):
                self.unseen.append(phrase("run.code_of", name=name, function=_qualname(function)))
                continue
            texts[each] = hashlib.sha256(text.encode()).hexdigest()
        if isinstance(target, type):
            plain = {k: v for k, v in vars(target).items() if k[:2] != "__" and _is_plain(v)}
            texts |= {key: self.read(one, f"{name}.{key}") for key, one in plain.items()}
        used = self._used(functions.values(), name)
        return {"source": texts, "uses": used, **self._bases(target, name)}

    def _used(self, functions: Iterable[types.FunctionType], name: str) -> JsonValue:
        used: dict[str, JsonValue] = {}
        for function in functions:
            for each in _names_in(function.__code__):
                if each in function.__globals__ and each not in used:
                    value = function.__globals__[each]
                    if _is_plain(value) or callable(value) or isinstance(value, types.ModuleType):
                        used[each] = self.read(value, f"{name}.{each}")
        return used

    def _bound(self, function: types.FunctionType, name: str) -> dict[str, JsonValue]:
        """Return the defaults of a function and the variables of its closure, as JSON values."""
        if _is_installed(function.__module__):
            return {}
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        bound: dict[str, JsonValue] = {}
        for variable, cell in cells:
            try:
                bound[variable] = self.read(cell.cell_contents, f"{name}.{variable}")
            except ValueError:  # not assigned yet
                continue
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        given = {"defaults": self.read(defaults, name)} if defaults else {}
        return {**given, **({"closure": bound} if bound else {})}


def is_ours(target: object) -> bool:
    """Return whether Temper itself defines a class or function.

    The settings of such a class are compared instead of its code.
    """
    return str(getattr(target, "__module__", "")).partition(".")[0] in OUR_PACKAGES


def is_own(target: object) -> bool:
    """Return whether a class or function is user-defined, not part of Temper or of a package."""
    return not is_ours(target) and not _is_installed(str(getattr(target, "__module__", "")))


def _qualname(target: object) -> str:
    return str(getattr(target, "__qualname__", None) or type(target).__qualname__)


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, bool | int | float | str | Enum | PurePath)


@functools.cache
def _is_installed(module: str) -> bool:
    """Return whether a module belongs to Python or to a package that has a version."""
    if module == MAIN:  # its file may be that of a launcher or a notebook kernel
        return False
    if module.partition(".")[0] in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return False
    return not INSTALLED.isdisjoint(Path(file).resolve().parts)


def _functions_of(target: object) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield a function itself; for a class, its methods."""
    members = vars(target) if isinstance(target, type) else {_qualname(target): target}
    for name, member in members.items():
        for each in (member, getattr(member, "__func__", None), getattr(member, "fget", None)):
            if isinstance(each, types.FunctionType):
                yield name, each
                break


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def part_differences(
    was: Facts, now: Facts, *, same_libraries: bool, verdicts: Mapping[str, Verdict] | None = None
) -> Iterator[Difference]:
    """Yield a difference for each part that has changed since the run was recorded.

    Args:
        same_libraries: whether all library versions are equal. If not, some differences are
            ignored, because another version may describe its own parts differently.
        verdicts: how much a difference matters, by name of the part; by default, it changes the
            result.
    """
    for name in dict.fromkeys([*was, *now]):
        before, current = was.get(name), now.get(name)
        if name == OPTIMIZER or (name in OF_LIBRARIES and not same_libraries):
            before, current = _known_to_both(before, current)
        if before != current:
            verdict = (verdicts or {}).get(name, Verdict.CHANGES_THE_RESULT)
            if name in ("tokenizer", "processor") and not same_libraries:
                verdict = Verdict.ROUNDS_OTHERWISE  # the resulting tokens are compared themselves
            text = _in_words(name, before, current)
            yield Difference(name, *_differing(before, current), verdict, text=text)


def _known_to_both(before: JsonValue, current: JsonValue) -> tuple[JsonValue, JsonValue]:
    if not isinstance(before, dict) or not isinstance(current, dict):
        return before, current
    pairs = {k: _known_to_both(before[k], current[k]) for k in before if k in current}
    return {k: pair[0] for k, pair in pairs.items()}, {k: pair[1] for k, pair in pairs.items()}


def _differing(before: JsonValue, current: JsonValue) -> tuple[JsonValue, JsonValue]:
    """Return copies of two JSON values with only the keys in which they differ."""
    if not isinstance(before, dict) or not isinstance(current, dict):
        return before, current
    keys = [key for key in {**before, **current} if before.get(key) != current.get(key)]
    pairs = {
        key: _differing(before.get(key), current.get(key))
        for key in keys
        if key not in (ROWS, BLOCKS)
    }
    return {k: pair[0] for k, pair in pairs.items()}, {k: pair[1] for k, pair in pairs.items()}


def _in_words(name: str, before: JsonValue, current: JsonValue) -> str:
    """Return a message that shows at most three differences between two values of a part."""
    leaves = list(_leaves(name, before, current))
    more = f" and {len(leaves) - MOST_SHOWN} more" if len(leaves) > MOST_SHOWN else ""
    return redact("; ".join(leaves[:MOST_SHOWN]) + more)


def _leaves(name: str, before: JsonValue, current: JsonValue) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(current, dict):
        keys = dict.fromkeys([*before, *current])
        if ROWS in before and ROWS in current and before[ROWS] != current[ROWS]:
            yield _changed_rows(name, before, current)
            keys = {
                key: None for key in keys if key not in (ROWS, BLOCKS, NUM_EXAMPLES, NUM_HASHED)
            }
        for key in keys:
            if before.get(key) != current.get(key):
                yield from _leaves(f"{name}.{key}", before.get(key), current.get(key))
    elif isinstance(before, list) and isinstance(current, list) and len(before) == len(current):
        for index, pair in enumerate(zip(before, current, strict=True)):
            if pair[0] != pair[1]:
                yield from _leaves(f"{name}[{index}]", *pair)
    else:
        yield f"{name}: was {_short(before)}, is {_short(current)}"


def _changed_rows(
    name: str, before: Mapping[str, JsonValue], current: Mapping[str, JsonValue]
) -> str:
    """Return a message that rows have changed, with the number of rows if that has changed.

    If the number is the same, the message says where the first changed row is, if that is known.
    """
    counts = before.get(NUM_EXAMPLES), current.get(NUM_EXAMPLES)
    if counts[0] == counts[1] or None in counts:
        were, are = before.get(BLOCKS), current.get(BLOCKS)
        if isinstance(were, list) and isinstance(are, list) and isinstance(counts[0], int):
            differing = [
                at for at, pair in enumerate(zip(were, are, strict=False)) if pair[0] != pair[1]
            ]
            size = block_size(counts[0])
            if differing and size == 1:
                about = {"count": len(differing), "total": counts[0], "first": differing[0] + 1}
                return phrase("run.rows_differ", name=name, **about)
            if differing:
                first = differing[0] * size + 1
                return phrase("run.rows_differ_from", name=name, first=first, last=first + size - 1)
        return phrase("run.rows_changed", name=name)
    return phrase("run.number_of_rows_changed", name=name, was=counts[0], now=counts[1])


def _short(value: JsonValue) -> str:
    text = str(value)
    is_hash = isinstance(value, str) and len(value) == 64 and " " not in value
    return text[:12] if is_hash else text if len(text) <= 60 else f"{text[:57]}…"


def what_cannot_be_compared(unseen: Sequence[str]) -> list[str]:
    """Return a message that lists the objects that cannot be compared when the run resumes."""
    if not unseen:
        return []
    return [phrase("run.not_compared_on_resume", parts="; ".join(dict.fromkeys(unseen)))]
