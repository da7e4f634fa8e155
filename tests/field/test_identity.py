"""What a run is made from is compared when it resumes (D1 to D5, D7, D8)."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infrastructure.run.compatibility import RunChangedError
from infrastructure.training.checkpoints.checkpoint_manager import (
    CheckpointManager,
    load_values,
)
from infrastructure.training.hf_bridge import TemperCallback
from tests.field import identity_changes
from tests.field.identity_changes import (
    Change,
    Outcome,
    Table,
    changes,
    edit_json,
    edit_row,
    edit_text,
    edit_weights,
    harmless,
    is_as_expected,
    is_quiet,
    nudge,
)
from tests.slow import slow, slow_but
from tests.training.hf_bridge.tiny_trainer import (
    Rows,
    settings,
    tiny_model,
    train,
    trainer_of,
)
from tests.training.methods.method_runs import import_trl, methods_here


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    import_trl()
    return Table(tmp_path_factory.mktemp("identity"))


def refused(table: Table, route: str, apply: Any) -> tuple[str, ...]:
    """The names of what stopped the run."""
    result = table.result(Change(route, "", apply, Outcome.REFUSED))
    assert result.outcome is Outcome.REFUSED, result
    return result.names


def named(what: str) -> Change:
    [change] = [change for change in changes() if str(change) == what]
    return change


def test_d1_any_row_of_a_methods_data_is_compared(table: Table) -> None:
    """Not 16 of them: row 14 of 20, and a held-out one."""
    assert refused(table, "dpo", edit_row(14)) == ("data",)
    assert refused(table, "dpo", edit_row(3, "held_out.jsonl")) == ("held_out_data",)


def test_d2_the_reference_of_dpo_is_compared_where_all_weights_train(table: Table) -> None:
    assert refused(table, "dpo", edit_weights("base", nudge)) == ("ref_model",)


@pytest.mark.skipif("distillation" not in methods_here(), reason="this TRL has no distillation")
def test_d3_the_teacher_is_compared(table: Table) -> None:
    assert refused(table, "distillation", edit_weights("teacher", nudge)) == ("teacher_model",)


def test_d4_a_reward_is_compared_with_what_it_imports_and_compares_with(table: Table) -> None:
    for name, old, new in (
        ("mine/reward.py", "return scale", "return  scale"),
        ("mine/scale.py", "% 5", "% 3"),
        ("schema.json", "object", "array"),
    ):
        assert refused(table, "grpo", edit_text(name, old, new)) == ("reward_funcs",)


@pytest.mark.parametrize("route", slow_but(["own-lora"], ["own-lora", "dpo"]))
def test_d5_the_configuration_of_the_base_is_compared(table: Table, route: str) -> None:
    edit = edit_json(identity_changes.config_file, rms_norm_eps=1e-3)
    assert "model_config" in refused(table, route, edit)


# Of what a Trainer is made from; LoRA's other settings are compared as the first one is.
MADE_FROM = [
    *("callback-lora: lora_alpha=32", "callback-full: config.attn_pdrop"),
    *("callback-own: the collator's file", "callback-own: a partial loss", "dpo: beta"),
    *("callback-lora: lora_dropout=0.5", "callback-lora: use_rslora=True"),
]


@pytest.mark.parametrize("what", slow_but(MADE_FROM[:5], MADE_FROM))
def test_d7_what_a_trainer_is_made_from_is_compared(table: Table, what: str) -> None:
    change = named(what)
    assert is_as_expected(change, table.result(change))


@pytest.mark.parametrize(
    "what",
    [
        *("callback-own: an own learning rate", "callback-own: another optimizer"),
        *("callback-own: an own schedule's factor", "callback-lora: r=4"),
        "callback-own: an own decay of a group",
    ],
)
def test_d8_an_own_optimizer_and_the_shape_of_a_lora_are_refused_by_name(
    table: Table, what: str
) -> None:
    """Not ignored, not `KeyError: 'momentum'`, not a size mismatch of PEFT's."""
    change = named(what)
    assert is_as_expected(change, table.result(change))


# Ten of the table, of every class of outcome.
TEN = [
    *("callback-full: another version of torch", "callback-full: eval_steps=3"),
    *("callback-full: a held-out row", "callback-full: label_smoothing_factor=0.1"),
    *("callback-lora: two weights exchanged", "callback-own: a closure"),
    *("callback-own: an own callback", "callback-table: row 9"),
    *("own-lora: generation_config.json", "own-lora: the base's weights"),
]
QUICK = [
    *("callback-full: another version of torch", "callback-full: eval_steps=3"),
    *("callback-lora: two weights exchanged", "callback-own: a closure"),
    *("callback-table: row 9", "own-lora: the base's weights"),
]


@pytest.mark.parametrize("what", slow_but(QUICK, TEN))
def test_each_change_is_refused_recorded_or_harmless(table: Table, what: str) -> None:
    change = named(what)
    result = table.result(change)
    assert is_as_expected(change, result), result


@slow
def test_no_change_of_the_table_is_silent(table: Table) -> None:
    rows = changes()
    assert len(rows) >= 120
    results = {str(change): (change, table.result(change)) for change in rows}
    assert len(results) == len(rows)
    wrong = {what: result for what, (c, result) in results.items() if not is_as_expected(c, result)}
    assert wrong == {}


@slow
def test_what_means_nothing_is_neither_refused_nor_mentioned(table: Table) -> None:
    rows = harmless()
    assert len(rows) >= 20
    results = {str(change): (change, table.result(change)) for change in rows}
    wrong = {
        what: result
        for what, (change, result) in results.items()
        if not is_as_expected(change, result) or not is_quiet(result)
    }
    assert wrong == {}


CALM = ["callback-full: output_dir='elsewhere'", "callback-own: nothing"]


@pytest.mark.parametrize("what", slow_but(CALM[1:], CALM))
def test_a_healthy_resumption_is_quiet(table: Table, what: str) -> None:
    [change] = [change for change in harmless() if str(change) == what]
    result = table.result(change)
    assert is_as_expected(change, result), result
    assert is_quiet(result), result.lines


def test_what_is_accepted_by_its_name_resumes_and_reaches_the_report(tmp_path: Path) -> None:
    def changed() -> Any:
        model = tiny_model()
        model.config.layer_norm_epsilon = 1e-3
        return model

    with identity_changes.dying_at(2), pytest.raises(identity_changes.StoppedError):
        train(tmp_path, max_steps=3)
    with pytest.raises(RunChangedError) as raised:
        train(tmp_path, changed(), max_steps=3)
    [difference] = raised.value.differences
    assert difference.was == {"layer_norm_epsilon": 1e-5}
    trainer, _, _ = train(tmp_path, changed(), max_steps=3, accept=[difference.name])
    assert trainer.state.global_step == 3
    assert "model_config" in (tmp_path / "runs/tiny/report.html").read_text()


def facts_of(run: Path) -> dict[str, Any]:
    newest = CheckpointManager(run / "checkpoints").newest()
    facts: dict[str, Any] = load_values(newest).values["facts"]
    return facts


def test_what_cannot_be_compared_is_noted_at_the_start(tmp_path: Path) -> None:
    """A stream of rows, and a function without a text; of a healthy training there is nothing."""
    import torch

    class Stream(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            rows = Rows()
            return (rows[index] for index in range(len(rows)))

    scope: dict[str, Any] = {"__name__": "__main__", "torch": torch}
    exec("collate = lambda r: {n: torch.stack([x[n] for x in r]) for n in r[0]}", scope)
    noted: dict[str, list[str]] = {}
    for name in ("healthy", "unseen"):
        lines: list[str] = []
        trainer = trainer_of(tmp_path / name, max_steps=1)
        if name == "unseen":
            trainer.train_dataset, trainer.data_collator = Stream(), scope["collate"]
        callback = TemperCallback("tiny", settings(tmp_path / name), say=lines.append)
        trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=callback.resume_from())
        noted[name] = [line for line in lines if "run.not_compared_on_resume" in line]
        assert bool(facts_of(tmp_path / name / "runs/tiny")["unseen"]) is (name == "unseen")
    assert noted["healthy"] == []
    [line] = noted["unseen"]
    assert "data (Stream)" in line
    assert "data_collator" in line


def test_a_restored_run_knows_its_rows_and_no_file_for_others_has_its_key(tmp_path: Path) -> None:
    place = tmp_path / "place"
    here, there = tmp_path / "here", tmp_path / "there"
    backup = {"place": str(place), "finish_seconds": 120, "emergency_seconds": 120}
    train(here, config=settings(here, backup=backup), max_steps=2)
    facts = facts_of(here / "runs/tiny")
    parts = facts["parts"]
    secrets = [facts["key"], parts["data"]["rows"], parts["held_out_data"]["rows"]]
    for run in (here / "runs/tiny", place / "tiny"):
        files = [path for path in run.rglob("*") if path.is_file()]
        others = [path for path in files if "versions" not in path.relative_to(run).parts]
        assert {"model.safetensors", "summary.json"} <= {path.name for path in others}
        for path in others:
            assert not any(secret.encode() in path.read_bytes() for secret in secrets), path
    shutil.rmtree(here)
    original = Rows.__init__

    def other(self: Rows, num_rows: int = 22, seed: int = 0) -> None:
        original(self, num_rows, seed)
        if num_rows > 13:
            self.ids[13, 1] = (self.ids[13, 1] + 1) % 60

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "__init__", other)
        with pytest.raises(RunChangedError) as raised:
            train(there, config=settings(there, backup=backup), max_steps=2)
    [difference] = raised.value.differences
    assert (difference.name, difference.was, difference.current) == ("data", {}, {})
