"""What may differ when a run goes on, what may not, and what says so."""

from collections.abc import Collection
from typing import Any

import pytest

from infrastructure.core.errors import CheckpointError
from infrastructure.optimization.size_grid import SizeGrid
from infrastructure.run import compatibility
from infrastructure.run.compatibility import Difference, Verdict
from infrastructure.run.configuration_judge import (
    ConfigurationJudge,
    canonical_name,
    recorded_grid,
)

VERSIONS = {"python": "3.11.9", "torch": "2.8.0+cpu", "numpy": "2.0.1", "tokenizers": "0.22.0"}
FACTS: dict[str, Any] = {
    "settings": {"training.learning_rate": 0.01, "data.path": "/a/rows.jsonl", "training.seed": 0},
    "resolved": {"training.learning_rate": 0.01, "training.num_epochs": 2},
    "data": "ab" * 32,
    "num_examples": 9,
    "precision": "fp32",
    "planned_steps": 6,
    "total_steps": 6,
    "base_model": "cd" * 32,
    "base_is_frozen": True,
    "device": "cpu",
    "deterministic": True,
    "world_size": 1,
    "machine": "a processor",
    "versions": VERSIONS,
}


differences = ConfigurationJudge().differences


def check_compatible(
    was: dict[str, Any], found: dict[str, Any], accept: Collection[str] = ()
) -> list[Difference]:
    accepted = frozenset(map(canonical_name, accept))
    return compatibility.check_compatible(was, found, ConfigurationJudge(), accepted)


def changed(**facts: Any) -> dict[str, Any]:
    return {**FACTS, **facts}


def with_settings(**settings: Any) -> dict[str, Any]:
    return changed(settings={**FACTS["settings"], **settings})


def with_versions(**versions: str) -> dict[str, Any]:
    return changed(versions={**VERSIONS, **versions})


def test_nothing_differs_where_nothing_has_changed() -> None:
    assert differences(FACTS, changed()) == []
    assert check_compatible(FACTS, changed()) == []


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (with_settings(**{"training.seed": 1}), "seed"),
        (changed(data="ef" * 32), "data"),
        (changed(base_model="ef" * 32), "base_model"),
        (changed(precision="bf16"), "precision"),
    ],
)
def test_what_changes_the_result_stops_until_it_is_accepted(
    found: dict[str, Any], name: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"run\.accept_the_change\(.*accept={name}\)"):
        check_compatible(FACTS, found)
    (difference,) = check_compatible(FACTS, found, [name])
    assert difference.verdict is Verdict.CHANGES_THE_RESULT


def test_another_form_of_attention_is_shown_where_both_know_theirs() -> None:
    products, kernel = changed(attention="by products"), changed(attention="by a kernel")
    [difference] = check_compatible(products, kernel)
    assert (difference.name, difference.verdict) == ("attention", Verdict.ROUNDS_OTHERWISE)
    assert check_compatible(FACTS, kernel) == []  # begun before it was recorded


def test_other_held_out_rows_count_unless_they_come_of_other_data() -> None:
    rows, others = ({"parts": {"held_out_data": each * 32}} for each in ("ab", "cd"))
    [difference] = check_compatible(changed(**rows), changed(**others), ["held_out_data"])
    assert (difference.name, difference.verdict) == ("held_out_data", Verdict.CHANGES_THE_RESULT)
    with pytest.raises(CheckpointError, match="held_out_data"):
        check_compatible(changed(**rows), changed(**others))
    other_data = changed(**others, data="ef" * 32)
    assert [each.name for each in differences(changed(**rows), other_data)] == ["data"]


def test_a_run_that_began_with_other_labels_does_not_go_on_with_these() -> None:
    """Older versions learnt tokens after an answer's end; nothing changes in the middle of a run
    unless somebody accepts it."""
    with pytest.raises(CheckpointError, match=r"run\.trained_tokens_marked_differently"):
        check_compatible(FACTS, {**FACTS, "data": "ef" * 32, "labels": 2})
    assert (
        check_compatible(FACTS, {**FACTS, "labels": 2}) == []
    )  # nothing that it learns is different
    with pytest.raises(CheckpointError) as raised:
        check_compatible({**FACTS, "labels": 2}, {**FACTS, "data": "ef" * 32, "labels": 2})
    assert "run.trained_tokens_marked_differently" not in str(raised.value)


def test_code_is_compared_where_both_know_it() -> None:
    def with_code(**hashes: str) -> dict[str, Any]:
        parts = {
            f"{name}:X": {"address": f"{name}:X", "file": f"{name}.py", "sha256": sha256}
            for name, sha256 in hashes.items()
        }
        return changed(code={"temper.strategies": parts})

    assert check_compatible(FACTS, with_code(turns="ab")) == []  # begun before it was recorded
    assert check_compatible(with_code(turns="ab"), with_code(turns="ab", other="cd")) == []
    two = with_code(turns="ab", other="ab"), with_code(turns="cd", other="cd")
    shown = r"turns:X \(turns.py\).*other:X \(other.py\).*accept=code"
    with pytest.raises(CheckpointError, match=shown):
        check_compatible(*two)
    [difference] = check_compatible(*two, ["code"])
    assert difference.current == {"turns:X": "cd", "other:X": "cd"}


def test_of_what_a_part_imports_the_files_that_have_changed_are_named() -> None:
    def with_imports(**hashes: str) -> dict[str, Any]:
        imports = {f"{name}.py": sha256 for name, sha256 in hashes.items()}
        part = {"address": "turns:X", "file": "turns.py", "sha256": "ab", "imports": imports}
        return changed(code={"temper.strategies": {"turns:X": part}})

    was = with_imports(same="ab", other="ab", gone="ab")
    assert check_compatible(was, with_imports(same="ab", other="ab", new="ab")) == []
    with pytest.raises(CheckpointError, match=r"turns:X \(other.py\)"):
        check_compatible(was, with_imports(same="ab", other="cd", new="ab"))
    both = with_imports(same="ab", other="cd")
    both["code"]["temper.strategies"]["turns:X"]["sha256"] = "ef"
    with pytest.raises(CheckpointError, match=r"turns:X \(turns.py, other.py\)"):
        check_compatible(was, both)
    [difference] = check_compatible(was, both, ["code"])
    assert difference.was == {"turns:X": {"turns.py": "ab", "other.py": "ab"}}
    assert difference.current == {"turns:X": {"turns.py": "ef", "other.py": "cd"}}


def test_all_that_stops_is_reported_at_once_with_both_values() -> None:
    found = {**with_settings(**{"training.seed": 1}), "data": "ef" * 32}
    with pytest.raises(CheckpointError) as raised:
        check_compatible(FACTS, found, ["learning_rate"])
    text = str(raised.value)
    assert text == (
        "run.changed_since_checkpoint("
        "changes=seed: was 0, is 1; data: was abababababab, is efefefefefef, reason=, "
        "remedies=run.restore_what_changed(), "
        "or run.accept_the_change(accept_option=accept=seed,data), "
        "or run.start_new_run_by_command())"
    )


def test_a_change_that_can_never_be_accepted_leaves_nothing_to_accept() -> None:
    found = with_settings(
        **{"training.seed": 1, "model.dtype": "float32", "model.backend": "unsloth"}
    )
    with pytest.raises(CheckpointError) as raised:
        check_compatible(FACTS, found)
    changes, _, reason = str(raised.value).partition(", reason=")
    assert changes.count(": was ") == 3
    assert reason == (
        " (run.fixed_within_run(names=dtype, backend)), "
        "remedies=run.restore_what_changed(), or run.start_new_run_by_command())"
    )


@pytest.mark.parametrize(
    "found",
    [
        with_versions(numpy="2.0.2"),
        with_versions(python="3.11.13"),
        with_versions(tokenizers="0.23.0"),
        with_versions(bitsandbytes="0.48.0"),
        changed(machine="another processor"),
        with_settings(**{"data.path": "/b/other.jsonl"}),
    ],
)
def test_what_changes_nothing_is_reported_and_stops_nobody(found: dict[str, Any]) -> None:
    (difference,) = check_compatible(FACTS, found)
    assert difference.verdict is Verdict.HARMLESS
    assert ": was " in str(difference)


@pytest.mark.parametrize(
    "found",
    [
        changed(world_size=2),
        changed(device="NVIDIA L4"),
        changed(deterministic=False),
        with_versions(torch="2.8.1+cpu"),
        with_versions(torch="3.0.0+cu128"),
        with_versions(numpy="2.1.0"),
        with_versions(python="3.12.1"),
    ],
)
def test_another_machine_is_recorded_and_stops_nobody(found: dict[str, Any]) -> None:
    """It comes back by itself, in another image; nobody is there to accept it."""
    (difference,) = check_compatible(FACTS, found)
    assert difference.verdict is Verdict.ROUNDS_OTHERWISE
    [line] = compatibility.in_words([difference], 7)
    assert "run.not_bit_exact_after_change(step=7," in line
    assert str(difference) in line


def test_auto_equals_the_number_that_it_means() -> None:
    assert check_compatible(FACTS, with_settings(**{"training.learning_rate": "auto"})) == []


@pytest.mark.parametrize("name", ["batch_size", "gradient_accumulation"])
def test_what_is_measured_may_be_another_number_where_the_settings_are_the_same(name: str) -> None:
    was, now = (changed(resolved={f"training.{name}": number}) for number in (4, 8))
    with pytest.raises(CheckpointError, match=f"{name}: was 4, is 8"):
        check_compatible(was, now)


def test_a_base_that_all_steps_have_overwritten_is_not_compared() -> None:
    was = {**FACTS, "base_is_frozen": False}
    assert check_compatible(was, {**was, "base_model": "ef" * 32}) == []


@pytest.mark.parametrize(
    ("was", "found", "name"),
    [
        (FACTS, with_settings(**{"model.embedded.num_layers": 5}), "num_layers"),
        (FACTS, with_settings(**{"model.lora_config": True}), "lora_config"),
        (changed(precision="fp16"), FACTS, "precision"),
        (FACTS, changed(precision="fp16"), "precision"),
    ],
)
def test_what_has_no_place_in_the_checkpoint_cannot_be_accepted(
    was: dict[str, Any], found: dict[str, Any], name: str
) -> None:
    with pytest.raises(CheckpointError, match=r"run\.fixed_within_run") as raised:
        check_compatible(was, found, [name])
    assert "run.accept_the_change" not in str(raised.value)


@pytest.mark.parametrize(
    "key",
    [
        *("model.embedded.num_layers", "model.lora_config.r", "model.lora_config.target_modules"),
        *("model.adapter", "model.backend", "model.dtype", "model.lora_config"),
        *("training.strategy", "training.layerwise_lr_decay"),
    ],
)
def test_what_gives_the_checkpoint_another_shape_needs_a_new_run(key: str) -> None:
    [difference] = differences(FACTS, with_settings(**{key: "unsloth"}))
    assert difference.verdict is Verdict.NEEDS_A_NEW_RUN


def test_a_format_of_old_gpus_is_brought_back_by_its_flag() -> None:
    with pytest.raises(
        CheckpointError,
        match=r"restore_precision_by_flag\(.*mixed_precision=fp16\)",
    ):
        check_compatible(changed(precision="fp16"), FACTS)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(
        ValueError, match=r"unknown_accepted_name\(name=learnig_rate.*meant=learning_rate"
    ):
        check_compatible(FACTS, FACTS, ["learnig_rate"])


def test_a_name_may_be_given_in_full() -> None:
    assert canonical_name("training.learning_rate") == "learning_rate"
    assert canonical_name("epochs") == canonical_name("--epochs") == "num_epochs"
    assert canonical_name("data.path") == canonical_name("data.path")


def test_lengths_are_rounded_as_the_run_began_to() -> None:
    assert recorded_grid(FACTS) is SizeGrid.EXACT  # before there was a choice
    assert all(recorded_grid(changed(size_grid=grid.value)) is grid for grid in SizeGrid)
    with pytest.raises(CheckpointError, match=r"run\.unknown_length_rounding.*name=thirds"):
        recorded_grid(changed(size_grid="thirds"))


def test_a_checkpoint_of_ones_own_loop_has_no_differences_and_goes_on() -> None:
    assert check_compatible({}, FACTS) == []


def test_of_a_hash_the_beginning_is_shown_and_of_a_text_all() -> None:
    text = "a prompt of sixty-four characters, which is no hash of anything."
    assert len(text) == 64
    (difference,) = check_compatible(FACTS, with_settings(**{"training.seed": text}), ["seed"])
    assert str(difference) == f"seed: was 0, is {text}"
    address = with_settings(**{"training.seed": "https://me:hunter22@host/rows"})
    (difference,) = check_compatible(FACTS, address, ["seed"])
    assert "hunter22" not in str(difference)


def test_another_name_of_the_same_base_changes_nothing() -> None:
    (difference,) = check_compatible(FACTS, with_settings(**{"model.name": "elsewhere"}))
    assert difference.verdict is Verdict.HARMLESS


def test_another_setting_of_the_same_base_changes_the_result() -> None:
    found = with_settings(**{"training.seed": 1})
    with pytest.raises(CheckpointError, match=r"run\.accept_the_change\(.*accept=seed\)"):
        check_compatible(FACTS, found)


def test_another_name_of_a_base_that_nobody_has_hashed_changes_the_result() -> None:
    was = changed(base_model=None, base_is_frozen=False)
    found = {**was, "settings": {**FACTS["settings"], "model.name": "elsewhere"}}
    with pytest.raises(CheckpointError, match=r"run\.accept_the_change.*=model\.name\)"):
        check_compatible(was, found)


def test_other_data_under_another_path_changes_the_result_twice() -> None:
    found = {**with_settings(**{"data.path": "/b/other.jsonl"}), "data": "ef" * 32}
    with pytest.raises(CheckpointError) as raised:
        check_compatible(FACTS, found)
    assert "data.path" in str(raised.value)
    assert "data: was" in str(raised.value)


def test_on_a_gpu_a_patch_of_what_does_not_compute_there_changes_nothing() -> None:
    was = {**FACTS, "device": "NVIDIA L4"}
    found = {**with_versions(numpy="2.0.2"), "device": "NVIDIA L4"}
    (difference,) = check_compatible(was, found)
    assert difference.verdict is Verdict.HARMLESS


def test_another_name_with_another_base_changes_the_result_twice() -> None:
    found = {**with_settings(**{"model.name": "elsewhere"}), "base_model": "ef" * 32}
    verdicts = {each.name: each.verdict for each in differences(FACTS, found)}
    assert verdicts == dict.fromkeys(["model.name", "base_model"], Verdict.CHANGES_THE_RESULT)


PARTS = {"held_out_data": {"rows": "ab" * 32}, "model_config": {"eps": 1}, "lora": {"r": 4}}
OTHER_PARTS = {"held_out_data": {"rows": "cd" * 32}, "model_config": {"eps": 2}, "lora": {"r": 8}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {"held_out_data", "model_config", "lora"}),
        ({"data": "ef" * 32}, {"data", "model_config", "lora"}),
        ({"settings": {"data.eval_path": "/b"}}, {"held_out_data", "model_config", "lora"}),
        (
            {"settings": {"data.eval_path": "/b"}, "data": "ef" * 32},
            {"data", "held_out_data", "model_config", "lora"},
        ),
        ({"settings": {"model.revision": "b"}}, {"model.revision", "held_out_data", "lora"}),
        ({"settings": {"training.seed": 1}}, {"seed", "held_out_data", "model_config", "lora"}),
    ],
)
def test_a_part_is_named_unless_another_difference_explains_it(
    change: dict[str, Any], expected: set[str]
) -> None:
    settings = {**FACTS["settings"], "data.eval_path": None, "model.revision": "a"}
    was = changed(parts=PARTS, settings=settings)
    found = {**was, **change, "parts": OTHER_PARTS}
    found["settings"] = {**settings, **change.get("settings", {})}
    names = {d.name for d in differences(was, found)} - {"data.eval_path", "eval_path"}
    names = {"model.revision" if name == "revision" else name for name in names}
    assert names == expected
    assert not {"held_out_data", "model_config", "lora"} & {
        d.name for d in differences({**was, "parts": OTHER_PARTS}, found)
    }


def test_a_checkpoint_without_parts_compares_none() -> None:
    assert differences(FACTS, changed(parts=PARTS)) == []
    assert len(differences(changed(parts={}), changed(parts={"lora": {"r": 4}}))) == 1


@pytest.mark.parametrize("version", ["2.8.0+cpu", "2.8.1"])
def test_other_libraries_may_add_keys_to_a_model_s_configuration(version: str) -> None:
    was = changed(parts={"model_config": {"eps": 1}})
    found = {**with_versions(torch=version), "parts": {"model_config": {"eps": 1, "new": 0}}}
    is_same = version == VERSIONS["torch"]
    assert [d.name for d in differences(was, found)] == ["model_config" if is_same else "torch"]


def test_each_difference_has_both_values_in_their_order() -> None:
    was = changed(parts={"lora": {"r": 4}})
    found = {**with_versions(torch="2.9.0"), "parts": {"lora": {"r": 8}}}
    values = {d.name: (d.was, d.current) for d in differences(was, found)}
    assert values == {"lora": ({"r": 4}, {"r": 8}), "torch": ("2.8.0+cpu", "2.9.0")}


@pytest.mark.parametrize("name", ["device", "driver", "world_size", "num_threads", "attention"])
def test_another_place_to_compute_only_rounds_otherwise(name: str) -> None:
    was, found = changed(**{name: "one"}), changed(**{name: "other"})
    [difference] = check_compatible(was, found)
    assert (difference.name, difference.was, difference.current) == (name, "one", "other")
    assert difference.verdict is Verdict.ROUNDS_OTHERWISE
    if name not in FACTS:
        assert differences(changed(**{name: None}), found) == differences(FACTS, found) == []
        assert differences(was, changed(**{name: None})) == []


@pytest.mark.parametrize(
    ("package", "was", "now", "verdict"),
    [
        *(
            (name, "2.8.0", "2.8.1", Verdict.ROUNDS_OTHERWISE)
            for name in ("torch", "transformers", "peft", "bitsandbytes", "unsloth", "trl")
        ),
        *(
            (name, "1.0.0", "2.1.0", Verdict.HARMLESS)
            for name in ("datasets", "tokenizers", "safetensors")
        ),
        ("accelerate", "1.0.0", "1.0.1", Verdict.ROUNDS_OTHERWISE),
        ("numpy", "2.0.1", "2.0.2", Verdict.HARMLESS),
        ("numpy", "2.0.1", "2.1.1", Verdict.ROUNDS_OTHERWISE),
        ("numpy", "1.0.1", "2.0.1", Verdict.ROUNDS_OTHERWISE),
        ("tokenizers", "0.1.0", "0.9.0", Verdict.HARMLESS),
        ("torch", None, "2.8.1", Verdict.HARMLESS),
        ("torch", "2.8.1", None, Verdict.HARMLESS),
    ],
)
def test_a_version_is_judged_by_what_the_package_does(
    package: str, was: str | None, now: str | None, verdict: Verdict
) -> None:
    before, after = ({} if v is None else {package: v} for v in (was, now))
    [difference] = compatibility.version_differences({"versions": before}, {"versions": after})
    assert (difference.name, difference.was, difference.current) == (package, was, now)
    assert difference.verdict is verdict


def test_a_refusal_holds_what_it_refuses_and_nothing_else() -> None:
    found = {**with_settings(**{"training.seed": 1}), "data": "ef" * 32, "device": "cuda"}
    with pytest.raises(compatibility.RunChangedError) as caught:
        check_compatible(FACTS, found, ["data"])
    assert [d.name for d in caught.value.differences] == ["seed"]


def test_lines_for_what_was_accepted_and_for_what_rounds_otherwise() -> None:
    def lines(*verdicts: Verdict) -> list[str]:
        return compatibility.in_words([Difference(v.name, 1, 2, v) for v in verdicts], 7)

    assert lines() == lines(Verdict.HARMLESS) == []
    [accepted] = lines(Verdict.CHANGES_THE_RESULT, Verdict.HARMLESS)
    [rounded] = lines(Verdict.ROUNDS_OTHERWISE)
    assert accepted == "accepted: CHANGES_THE_RESULT: was 1, is 2"
    one = "ROUNDS_OTHERWISE: was 1, is 2"
    assert rounded == f"run.not_bit_exact_after_change(step=7, changes={one})"
    both = lines(Verdict.CHANGES_THE_RESULT, Verdict.ROUNDS_OTHERWISE, Verdict.ROUNDS_OTHERWISE)
    assert both[1] == accepted
    assert f"changes={one}; {one})" in both[0]


def test_packages_are_compared_by_name_where_either_side_has_them() -> None:
    was, now = ({"versions": dict.fromkeys(names, v)} for names, v in (("cb", "1"), ("ca", "2")))
    found = compatibility.version_differences(was, now)
    assert [(d.name, d.was, d.current) for d in found] == [
        ("a", None, "2"),
        ("b", "1", None),
        ("c", "1", "2"),
    ]


def test_a_difference_is_shown_with_its_cause_or_by_its_own_text() -> None:
    def shown(**more: str) -> str:
        return str(Difference("rows", "a" * 63, "b" * 64, Verdict.HARMLESS, **more))

    assert shown() == f"rows: was {'a' * 63}, is {'b' * 12}"
    assert shown(cause="moved") == f"{shown()} (moved)"
    assert shown(cause="moved", text="other rows") == "other rows"
    assert "aB3aB3" not in shown(text="of hf_" + "aB3" * 12)
