"""The rules by which `temper train` compares the settings and data of a run before it resumes.

`training.resume.fingerprint` collects these facts.
"""

from collections.abc import Iterator, Sequence

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import (
    BACKEND,
    affects_result,
    backend_taken,
    differing_keys,
)
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import key_of_keyword
from infrastructure.core.errors import CheckpointError, InputError
from infrastructure.core.features import models_of_features
from infrastructure.core.lookup import nearest
from infrastructure.core.messages import Setting, phrase
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.run.compatibility import (
    PACKAGE_NAMES,
    Difference,
    Facts,
    Verdict,
    version_differences,
)
from infrastructure.run.identity import HELD_OUT_DATA, PART_NAMES, part_differences

# The result of these settings is compared itself: the examples in their order.
COMPARED_BY_CONTENT = frozenset({"data.path", "data.chat_template", "data.format"})
# `auto` may have resolved to the number that is now given explicitly.
RESOLVED = (
    "training.learning_rate",
    "training.num_epochs",
    "training.batch_size",
    "training.gradient_accumulation",
)
# Measured if the configuration leaves them open: equal settings may resolve to different numbers.
MEASURED = RESOLVED[2:]
# The tensors of a checkpoint do not fit a model or an optimizer of another shape.
NEEDS_A_NEW_RUN = (
    "model.embedded.",
    "model.lora_config.r",
    "model.lora_config.target_modules",
    "model.adapter",
    "model.backend",
    "model.dtype",
    "training.strategy",
    "training.layerwise_lr_decay",
)

CODE = "code"  # of user-defined parts
PARTS = "parts"
# These name weights, which are compared themselves.
OF_THE_BASE = ("model.name", "model.revision", *models_of_features(in_base=True))
COMPARED_FACTS = ("data", "base_model", "precision")
# These affect the order of sums and the random numbers.
MACHINE_FACTS = ("device", "driver", "deterministic", "world_size", "attention", "num_threads")
NOT_ALWAYS_RECORDED = ("driver", "attention", "num_threads")
FACT_NAMES = tuple(dict.fromkeys([*COMPARED_FACTS, *MACHINE_FACTS, CODE, *PART_NAMES]))


class ConfigurationJudge:
    """The rules for runs that have a configuration; see `compatibility.Judge`."""

    def differences(self, was: Facts, now: Facts) -> list[Difference]:
        """Return the settings, facts and checkpoints that differ."""
        return [
            *_settings(was, now),
            *_facts(was, now),
            *_code(was, now),
            *_parts(was, now),
            *version_differences(was, now),
        ]

    def how_to_accept(self, names: Sequence[str]) -> str:
        """Return the setting that accepts these differences."""
        return Setting("accept", ",".join(names))

    def why_never(self, names: Sequence[str]) -> str:
        """Return a message that these settings cannot change within a run."""
        return phrase("run.fixed_within_run", names=", ".join(names))

    def other_remedies(self, refused: Sequence[Difference]) -> list[str]:
        """Return the flag that restores a changed precision, and a text on how to start a
        new run.
        """
        was = [str(d.was) for d in refused if d.name == "precision"]
        settings = [Setting("training.mixed_precision", name) for name in was]
        remedies = [phrase("run.restore_precision_by_flag", flag=setting) for setting in settings]
        return [*remedies, phrase("run.start_new_run_by_command")]


def recorded_grid(was: Facts) -> SizeGrid:
    """Return how a run rounded the lengths of batches. A resumed run must round them in the same
    way.

    Raises:
        CheckpointError: if the rounding is unknown to this release.
    """
    name = was.get("size_grid", SizeGrid.EXACT)  # default for runs from before there was a choice
    try:
        return SizeGrid(name)
    except ValueError:
        raise CheckpointError("run.unknown_length_rounding", name=name) from None


def canonical_name(name: str) -> str:
    """Return the displayed name of a setting or fact, given its name, its key or its flag.

    Raises:
        ValueError: if there is no setting or fact of this name. The message suggests the nearest
            one.
    """
    known = names()
    if (shown := accepted_name(name)) in known:
        return known[shown]
    meant = nearest(name, known)
    hint = (
        phrase("run.meant_name", meant=meant)
        if meant
        else phrase("run.names_to_accept", names=", ".join(FACT_NAMES))
    )
    raise InputError("run.unknown_accepted_name", name=name, hint=hint)


def accepted_name(name: str) -> str:
    """Return the displayed name of a setting or fact, given its name, its key or its flag.

    An unknown name is returned unchanged.
    """
    known = names()
    return known.get(name) or known.get(key_of_keyword(name.removeprefix("--")), name)


def names() -> dict[str, str]:
    """Return all names that `accept` takes, each mapped to the displayed name."""
    keys = _keys_that_count()
    shown = {key: _shown_among(keys, key) for key in keys}
    return {
        **shown,
        **{short: short for short in shown.values()},
        **{name: name for name in (*FACT_NAMES, *PACKAGE_NAMES)},
    }


def shown_name(key: str) -> str:
    """Return the name of a setting for `--accept`: the last part of its key, if unambiguous."""
    return _shown_among(_keys_that_count(), key)


def _keys_that_count() -> list[str]:
    return [key for key in schema_of(DeploymentConfig).fields if affects_result(key)]


def _shown_among(keys: Sequence[str], key: str) -> str:
    leaf = key.rpartition(".")[2]
    is_unique = sum(k.rpartition(".")[2] == leaf for k in keys) == 1
    return leaf if is_unique and leaf not in ("name", "path", "format", "r") else key


def _settings(was: Facts, current: Facts) -> Iterator[Difference]:
    before, now = was["settings"], current["settings"]
    for key in dict.fromkeys([*differing_keys(before, now), *MEASURED]):
        values: tuple[object, object] = before.get(key), now.get(key)
        if key == BACKEND and backend_taken(before) == backend_taken(now):
            continue
        if key in RESOLVED:  # older checkpoints have no measured numbers
            values = tuple(f["resolved"].get(key, f["settings"].get(key)) for f in (was, current))
            if values[0] == values[1]:
                continue
        yield Difference(shown_name(key), *values, _judged_setting(key, was, current))


def _judged_setting(key: str, was: Facts, current: Facts) -> Verdict:
    if key.startswith(NEEDS_A_NEW_RUN) or key == "model.lora_config":
        return Verdict.NEEDS_A_NEW_RUN
    same_data = was["data"] == current["data"]
    same_base = was["base_model"] is not None and was["base_model"] == current["base_model"]
    if (key in COMPARED_BY_CONTENT and same_data) or (key in OF_THE_BASE and same_base):
        return Verdict.HARMLESS
    return Verdict.CHANGES_THE_RESULT


def _facts(was: Facts, current: Facts) -> Iterator[Difference]:
    for name in (*COMPARED_FACTS, *MACHINE_FACTS, "machine"):
        if name in NOT_ALWAYS_RECORDED and None in (was.get(name), current.get(name)):
            continue  # unknown, or several processes share the threads
        before, now = was[name], current[name]
        if name == "base_model" and not was["base_is_frozen"]:
            continue  # full fine-tuning has overwritten it
        if before != now:
            cause = (
                phrase("run.trained_tokens_marked_differently")
                if name == "data" and _has_other_labels(was, current)
                else ""
            )
            yield Difference(name, before, now, _judged_fact(name, before, now), cause)


def _parts(was: Facts, current: Facts) -> Iterator[Difference]:
    """Yield the differences in data and parts, but not in settings and the files that settings
    name.

    Checkpoints of older releases have no record of parts.
    """
    if PARTS not in was:
        return
    splits_data = current["settings"].get("data.eval_path") is None
    same_model = not any(
        key.startswith("model.") for key in differing_keys(was["settings"], current["settings"])
    )
    for difference in part_differences(
        was[PARTS], current[PARTS], same_libraries=was["versions"] == current["versions"]
    ):
        follows_data = difference.name == HELD_OUT_DATA and splits_data
        if follows_data and was["data"] != current["data"]:
            continue  # split from the rows that are already reported
        if difference.name != "model_config" or same_model:
            yield difference


def _code(was: Facts, current: Facts) -> Iterator[Difference]:
    """Yield one difference that lists all user-defined parts whose source code has changed.

    Added and removed parts are not included, because they appear as changed settings. Checkpoints
    of older releases have no hashes of source files, or no hashes of imported files. A file that a
    part imports only before or only after the change is ignored, because the importing file has
    changed, too.
    """
    before, now = was.get(CODE, {}), current.get(CODE, {})
    both = [(group, name) for group in before for name in before[group]]
    changed = {
        (group, name): files
        for group, name in both
        if name in now.get(group, {})
        and (files := _changed_files(before[group][name], now[group][name]))
    }
    if not changed:
        return
    shown = dict.fromkeys(
        f"{now[group][name]['address']} ({', '.join(files)})"
        for (group, name), files in changed.items()
    )
    yield Difference(
        CODE,
        {name: _hashes(before[group][name], files) for (group, name), files in changed.items()},
        {name: _hashes(now[group][name], files) for (group, name), files in changed.items()},
        Verdict.CHANGES_THE_RESULT,
        text=phrase("run.code_changed", parts=", ".join(shown)),
    )


def _changed_files(before: Facts, now: Facts) -> list[str]:
    own = [now["file"]] if before["sha256"] != now["sha256"] else []
    was, current = before.get("imports", {}), now.get("imports", {})
    return own + [name for name in was if name in current and was[name] != current[name]]


def _hashes(code: Facts, files: Sequence[str]) -> object:
    """Return the hash of the part's own file, or hashes by file name if other files changed."""
    if [*files] == [code["file"]]:
        return code["sha256"]
    known = {**code.get("imports", {}), code["file"]: code["sha256"]}
    return {name: known[name] for name in files}


def _has_other_labels(was: Facts, current: Facts) -> bool:
    """Return whether the run of a checkpoint chose the trained tokens by another rule.

    Checkpoints of older releases do not record the rule.
    """
    return bool(was.get("labels", 1) != current.get("labels", 1))


def _judged_fact(name: str, before: object, now: object) -> Verdict:
    if name == "machine":
        return Verdict.HARMLESS
    if name in MACHINE_FACTS:
        return Verdict.ROUNDS_OTHERWISE
    if name == "precision" and "fp16" in (before, now):  # fp16 checkpoints have a gradient scaler
        return Verdict.NEEDS_A_NEW_RUN
    return Verdict.CHANGES_THE_RESULT
