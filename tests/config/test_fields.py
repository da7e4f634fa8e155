"""Values that each setting accepts, what it cannot be combined with, other tools' names for it, and
built-in names. The README of the configuration, which is tested too, has its flags and default.

After a change, `python -m tests.config.test_fields` writes the table again.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from infrastructure.config import measures, registries
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.elsewhere import SAME, SAME_WORDS
from infrastructure.config.field_help import allowed_values
from infrastructure.config.merging.effect import conditions_of
from infrastructure.config.methods import method_named
from infrastructure.config.schema import schema_of
from infrastructure.core.registry import Registry
from infrastructure.features.stackwise.registries import CACHES
from tests.config.field_values import memory_cache  # it registers a name for this process

GOLDEN = Path(__file__).with_name("fields.txt")
SCHEMA = schema_of(DeploymentConfig)


def settings() -> Iterator[str]:
    for key, spec in SCHEMA.fields.items():
        values = "on or off" if spec.is_switch else allowed_values(spec.info)
        conditions = (
            f"; unless {one.otherwise} {dict(one.about) or ''}: {one.remedy}"
            for one in conditions_of(spec)
        )
        yield f"{key}: {values}{''.join(conditions)}"


def names() -> Iterator[str]:
    others: dict[str, list[str]] = defaultdict(list)
    for name, keys in SAME.items():
        others[" and ".join(keys)].append(name)
    yield from (f"elsewhere {keys}: {' '.join(sorted(others[keys]))}" for keys in sorted(others))
    for name, word in sorted(SAME_WORDS.items()):
        yield f"elsewhere value {name} {word}"
    for name, unit in measures.MEASURES.items():
        order = "greater" if measures.is_greater_better(name) else "lower"
        package = " torchmetrics" * (name in measures.OF_TORCHMETRICS)
        yield f"measure {name} {unit.value} {order}{package}"
    for registry in vars(registries).values():
        if isinstance(registry, Registry):
            decides = "decides" if registry.decides else "does not decide"
            yield f"{registry.group} ({registry.what}, {decides}) {' '.join(registry.built_in)}"
    for name in registries.METHODS.built_in:
        method = method_named(name)
        assert method is not None
        reads = sorted(method.reads)
        yield f"method {name} {method.title}, {method.class_name}, {method.modules}, {reads}"


def rendered() -> str:
    return "".join(f"{line}\n" for line in (*settings(), *names()))


def test_the_settings_are_those_of_the_table() -> None:
    assert CACHES.get("something") is memory_cache
    assert rendered() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(rendered(), encoding="utf-8")
