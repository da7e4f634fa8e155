"""All settings with their defaults, values, names and effects, and what stands beside them.

After a change of a setting: `python -m tests.config.test_fields` writes the table anew.
"""

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

from infrastructure.config import measures, registries
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.elsewhere import SAME, SAME_WORDS
from infrastructure.config.field_help import allowed_values
from infrastructure.config.fingerprint import affects_result
from infrastructure.config.merging.effect import conditions_of
from infrastructure.config.merging.presets import PRESETS
from infrastructure.config.methods import method_named
from infrastructure.config.schema import FieldSpec, schema_of
from infrastructure.config.sources.flags import add_config_flags, help_text
from infrastructure.config.sources.spelling import as_flag, as_keyword
from infrastructure.core.messages import spelled_by
from infrastructure.core.registry import Registry
from infrastructure.features.stackwise.registries import CACHES
from tests.config.field_values import memory_cache  # it registers a name for this process

GOLDEN = Path(__file__).with_name("fields.txt")
SCHEMA = schema_of(DeploymentConfig)


def settings() -> Iterator[str]:
    parser = ArgumentParser()
    add_config_flags(parser)
    typed = {one.option_strings[0]: one for one in parser._actions if one.option_strings}
    for key, spec in SCHEMA.fields.items():
        flag = typed[as_flag(key)]
        yield f"{key} = {json.dumps(None if spec.is_switch else spec.default, default=str)}"
        yield f"    {' '.join(flag.option_strings)} {flag.metavar or ''}; {as_keyword(key)}"
        yield from (f"    {line}" for line in further(spec))


def further(spec: FieldSpec) -> Iterator[str]:
    allowed = "on or off" if spec.is_switch else allowed_values(spec.info)
    yield allowed
    with spelled_by(as_flag):
        yield help_text(spec).replace(spec.description, "…").replace(allowed, "it")
    if others := [name for name, key in SCHEMA.spellings.items() if key == spec.key != name]:
        yield f"also {' '.join(sorted(others))}"
    if not affects_result(spec.key):
        yield "same result"
    for one in conditions_of(spec):
        yield f"unless {one.otherwise} {dict(one.about) or ''}: {one.remedy}"


def beside() -> Iterator[str]:
    for name, preset in PRESETS.items():
        yield f"preset {name} {json.dumps(dict(preset.settings))}"
    for name, keys in sorted(SAME.items()):
        yield f"elsewhere {name} {' and '.join(keys)}"
    for name, word in sorted(SAME_WORDS.items()):
        yield f"elsewhere value {name} {word}"
    for name, unit in measures.MEASURES.items():
        order = "greater" if measures.is_greater_better(name) else "lower"
        package = " torchmetrics" * (name in measures.OF_TORCHMETRICS)
        yield f"measure {name} {unit.value} {order}{package}"
    for registry in vars(registries).values():
        if isinstance(registry, Registry):
            decides = "decides" if registry.decides else "beside"
            yield f"{registry.group} ({registry.what}, {decides}) {' '.join(registry.built_in)}"
    for name in registries.METHODS.built_in:
        method = method_named(name)
        assert method is not None
        reads = sorted(method.reads)
        yield f"method {name} {method.title}, {method.class_name}, {method.modules}, {reads}"


def rendered() -> str:
    return "".join(f"{line}\n" for line in (*settings(), *beside()))


def test_the_settings_are_those_of_the_table() -> None:
    assert CACHES.get("something") is memory_cache
    assert rendered() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(rendered(), encoding="utf-8")
