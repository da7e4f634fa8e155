"""The run of the training of a Trainer that somebody has made: its versions, record and model."""

import json
import os
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import get_peft_model
from safetensors.torch import load_file

from infrastructure.backup.backends.folder import FolderPlace
from infrastructure.backup.format.retention import Retention
from infrastructure.backup.format.store import Store
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.load import load_config
from infrastructure.core.checksums import damaged_files, read_record, write_record
from infrastructure.core.errors import (
    CheckpointError,
    CopyNotConfirmedError,
    InputError,
    StorageError,
)
from infrastructure.monitoring.records.run_list import how_to_run_again
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training.checkpoints.snapshot import Snapshot
from infrastructure.training.hf_bridge import trainer_run
from infrastructure.training.hf_bridge.trainer_run import (
    TrainerRun,
    precision_name,
    without_reference,
)
from tests.backup.memory_place import save
from tests.training.hf_bridge.test_trainer_state import lora
from tests.training.hf_bridge.tiny_trainer import settings, tiny_lora, tiny_model

TOKEN = "hf_" + "aB3" * 12


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
def test_the_precision_is_that_of_the_arguments(name: str, tmp_path: Path) -> None:
    from transformers import TrainingArguments

    given = {} if name == "fp32" else {name: True}
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], **given)
    assert precision_name(args) == name


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def run(tmp_path: Path, lines: list[str]) -> TrainerRun:
    run = TrainerRun("tiny", settings(tmp_path), lines.append)
    run.directory.mkdir(parents=True)
    return run


def test_versions_are_kept_by_the_configuration_with_the_files_of_the_run(
    tmp_path: Path, lines: list[str]
) -> None:
    kept = {"keep_checkpoints": 4, "keep_best": 3}
    run = TrainerRun("tiny", settings(tmp_path, training=kept), lines.append)
    assert run.versions.retention == Retention(4, 3)
    run.directory.mkdir(parents=True)
    (run.directory / "run.json").write_text("{}")
    assert [name.partition("@")[0] for name in run.versions.files()] == ["files/run.json"]


def test_the_trained_model_is_whole_with_its_tokenizer_and_written_once(
    run: TrainerRun, lines: list[str]
) -> None:
    calls: list[str] = []
    run.before_saving = lambda model: calls.append("before")
    run.check_saved = lambda model, folder: calls.append(
        "checked" if (folder / "adapter_model.safetensors").is_file() else "nothing there"
    )
    run.files.tokenizer.mkdir()
    (run.files.tokenizer / "tokenizer.json").write_text("{}")
    model = tiny_lora()
    run.save_model(model)
    assert calls == ["before", "checked"]
    names = {path.name for path in run.final.iterdir()}
    assert names >= {
        *("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"),
        *("generation_config.json", "README.md", "SHA256SUMS"),
    }
    assert damaged_files(run.final) == []
    run.save_model(model)
    assert (calls, lines) == (["before", "checked"], [])
    (run.final / "tokenizer.json").write_text("[]")
    run.save_model(model)
    assert (calls[2:], lines) == (
        ["before", "checked"],
        ["trainer.model_written_again(damaged=['tokenizer.json'])"],
    )
    assert damaged_files(run.final) == []
    run.final.rename(run.final.with_name(".final.0a1b2c3d.old"))  # killed while it was replaced
    run.save_model(model)
    assert len(calls) == 4
    (run.final / "SHA256SUMS").write_text("no sums")
    run.save_model(model)
    assert (len(calls), len(lines)) == (6, 2)
    assert "SHA256SUMS" in lines[1]
    assert damaged_files(run.final) == []


def test_a_model_that_is_not_what_was_trained_is_not_there(run: TrainerRun) -> None:
    def refuse(model: object, folder: Path) -> None:
        raise CheckpointError("other weights")

    run.check_saved = refuse
    with pytest.raises(CheckpointError):
        run.save_model(torch.nn.Linear(2, 1))
    assert not run.final.exists()


def test_a_model_of_nobody_s_library_is_its_weights(run: TrainerRun) -> None:
    model = torch.nn.Linear(2, 1)
    run.save_model(model)
    assert {path.name for path in run.final.iterdir()} == {"model.safetensors", "SHA256SUMS"}
    found = load_file(run.final / "model.safetensors")
    assert {name: one.tolist() for name, one in found.items()} == {
        name: one.tolist() for name, one in model.state_dict().items()
    }


@pytest.mark.parametrize("other", ["ref", "second"])
def test_the_lora_that_trl_compares_with_is_no_part_of_the_model(
    run: TrainerRun, other: str
) -> None:
    model = get_peft_model(tiny_model(), lora(2))
    model.add_adapter(other, lora(2))
    run.save_model(model)
    assert (run.final / other).exists() is (other != "ref")
    assert (run.final / "adapter_model.safetensors").is_file()
    weights = {
        "a.default.w": torch.ones(1),
        f"a.{other}.w": torch.ones(1),
        "a.reff.w": torch.ones(1),
    }
    assert (f"a.{other}.w" in without_reference(weights)) is (other != "ref")
    assert without_reference(weights).keys() >= {"a.default.w", "a.reff.w"}


def test_the_record_is_of_the_beginning_and_without_secrets(
    run: TrainerRun, tmp_path: Path
) -> None:
    from transformers import TrainingArguments

    given: dict[str, Any] = {"hub_token": TOKEN, "run_name": TOKEN, "learning_rate": 0.5}
    given |= {"report_to": [], "lr_scheduler_kwargs": {"api_key": "plain-words"}}
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **given)
    parts: Any = SimpleNamespace(args=args, model=tiny_lora(), device=torch.device("cpu"))
    run.record(parts, 22)
    record = read_record(run.files.run_file)
    assert not [text for text in (TOKEN, "plain-words") if text in json.dumps(record)]
    assert record["config"]["trainer.learning_rate"]["value"] == 0.5
    assert "trainer.seed" not in record["config"], "it is at its default"
    assert (record["precision"], record["data"]) == ("fp32", {"num_examples": 22})
    assert "configuration" not in record
    before = run.files.run_file.read_bytes()
    run.record(parts, 9)
    assert run.files.run_file.read_bytes() == before


def test_settings_that_take_effect_are_not_called_idle(tmp_path: Path) -> None:
    training = {
        **{"checkpoint_seconds": 60, "keep_checkpoints": 3, "keep_best": 2},
        **{"deadline": "1h", "metrics_sinks": ["jsonl"], "enabled_extensions": ["quantum"]},
    }
    more: dict[str, Any] = {"enable_backups": True, "log_level": "WARNING"}
    more["cache"] = {"directory": str(tmp_path)}
    more["backup"] = {"finish_seconds": 1.0}
    more |= {"enable_monitoring": False, "monitor": {"thresholds": {"gradient_norm": 9.0}}}
    config = settings(tmp_path, training=training, **more)
    assert TrainerRun("tiny", config, print).notes() == []
    idle = settings(tmp_path, training={"seed": 4}, model={"name": "x"})
    assert sorted(TrainerRun("tiny", idle, print).notes()) == [
        f"trainer.setting_without_effect(key={key})" for key in ("model.name", "training.seed")
    ]
    (tmp_path / "file.yaml").write_text("training: {seed: 4}")
    for given, keys in (
        ({}, []),  # a file is for other trainings, too
        ({"cell": {"model": {"name": "x"}}}, ["model.name"]),
        ({"flags": {"training.num_epochs": 2}}, ["training.num_epochs"]),
    ):
        config = load_config(tmp_path / "file.yaml", environment={}, **given)  # type: ignore[arg-type]
        notes = TrainerRun("tiny", config, print).notes()
        assert notes == [f"trainer.setting_without_effect(key={key})" for key in keys]
    assert TrainerRun("tiny", idle, print, is_whole=True).notes() == []


def at_place(tmp_path: Path, **backup: Any) -> DeploymentConfig:
    return settings(tmp_path, backup={"place": str(tmp_path / "disk/temper"), **backup})


def test_where_all_versions_of_here_are_damaged_that_of_the_place_serves(
    tmp_path: Path, lines: list[str]
) -> None:
    (tmp_path / "disk").mkdir()
    for config in (settings(tmp_path), at_place(tmp_path)):
        run = TrainerRun("tiny", config, lines.append)
        with ExitStack() as stack:
            run.enter(stack)
            if not run.versions.checkpoints():
                assert run.newest() is None
                run.versions.save(Snapshot({"model": {"w": torch.ones(3)}}, {"step": 4}))
            for pack in run.versions.store.read(run.versions.checkpoints()[0].stem).packs:
                run.versions.store.objects.path_of(pack.hash).write_bytes(b"")
            with pytest.raises(CheckpointError):
                run.newest()
    save(Store(Path("another"), FolderPlace(tmp_path / "disk/temper")), 7)
    run = TrainerRun("tiny", at_place(tmp_path), lines.append)
    with ExitStack() as stack:
        run.enter(stack)
        with pytest.raises(CheckpointError):
            run.newest()
        save(Store(Path("tiny"), FolderPlace(tmp_path / "disk/temper")), 3)
        newest = run.newest()
    backup = run.copies.backup
    assert backup.place_id is not None
    assert backup.record.id_of(str(tmp_path / "disk/temper")) == backup.place_id
    assert newest is not None
    assert step_of(newest) == 3
    place = tmp_path / "disk/temper"
    assert f"trainer.run_restored(name=tiny, destination={place})" in lines


def test_a_place_that_may_be_missing_is_not_searched_for_versions(tmp_path: Path) -> None:
    run = TrainerRun("tiny", at_place(tmp_path, allow_missing_place=True), lambda line: None)
    with ExitStack() as stack:
        run.enter(stack)
        assert run.newest() is None


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_place_is_checked_once_and_is_no_error_of_a_finished_training(
    run: TrainerRun, monkeypatch: pytest.MonkeyPatch, lines: list[str], is_finished: bool
) -> None:
    checks: list[str] = []
    monkeypatch.setattr(run.copies, "check_place", lambda: checks.append("checked"))
    for _ in range(2):
        run.check_place()
    assert checks == ["checked"]

    def refuse() -> None:
        raise StorageError("backup.place_is_away")

    run._is_place_checked = False
    monkeypatch.setattr(run.copies, "check_place", refuse)
    monkeypatch.setattr(run.copies, "problem", lambda: None)
    write_record(run.files.summary_file, {"status": "finished" if is_finished else "stopped"})
    with pytest.raises(CopyNotConfirmedError if is_finished else StorageError):
        run.check_place()
    assert lines == ["backup.place_is_away"] * is_finished
    assert run.copies.completion.problem == ("backup.place_is_away" if is_finished else None)


@pytest.mark.parametrize("problem", [None, "it is away"])
def test_the_end_waits_as_long_as_the_end_of_a_run_may(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, problem: str | None
) -> None:
    config = settings(tmp_path, backup={"finish_seconds": 77.0, "emergency_seconds": 5.0})
    run = TrainerRun("tiny", config, lines.append)
    waited: list[float] = []
    monkeypatch.setattr(
        trainer_run, "complete_finished", lambda files, copies, seconds: waited.append(seconds)
    )
    monkeypatch.setattr(run.copies, "problem", lambda: problem)
    if problem is None:
        run.complete()
    else:
        with pytest.raises(CopyNotConfirmedError):
            run.complete()
    assert (waited, lines) == ([77.0], [problem] if problem else [])


@pytest.mark.parametrize("is_whole", [False, True])
def test_the_record_holds_the_settings_that_have_an_effect(tmp_path: Path, is_whole: bool) -> None:
    config = settings(tmp_path, training={"seed": 4, "keep_best": 2}, log_level="WARNING")
    run = TrainerRun("tiny", config, print, is_whole)
    run.directory.mkdir(parents=True)
    run.decided = {"training.batch_size": {"value": 4, "reason": "measured"}}  # type: ignore[typeddict-item]
    from transformers import TrainingArguments

    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    parts: Any = SimpleNamespace(args=args, model=tiny_lora(), device=torch.device("cpu"))
    run.record(parts, None)
    record = read_record(run.files.run_file)
    assert record["config"]["training.keep_best"]["value"] == 2
    assert record["config"]["log_level"]["value"] == "WARNING"
    assert ("training.seed" in record["config"]) is is_whole
    assert ("configuration" in record) is is_whole
    assert record["settings"] == json.loads(json.dumps(config.to_dict()))
    assert record["decided"] == run.decided
    assert record["trainer"] == {"arguments_class": "TrainingArguments"}
    assert (record["hardware"]["device"], record["hardware"]["processes"]) == ("cpu", 1)
    assert {"python", "torch", "trl", "accelerate"} <= record["versions"].keys()
    assert run.how_to_resume() == (
        "trainer.run_command_again()" if is_whole else how_to_run_again(record)
    )
    counts = [p.numel() for p in parts.model.parameters() if p.requires_grad]
    assert record["model"]["num_trainable"] == sum(counts)
    assert record["model"]["num_parameters"] == sum(p.numel() for p in parts.model.parameters())


def test_a_name_has_at_most_100_characters_and_a_folder_may_begin_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = settings(tmp_path, output_dir="~/mine")
    name = "a" * 100
    assert TrainerRun(name, config, print).directory == tmp_path / "mine" / name
    with pytest.raises(ValueError, match=r"trainer\.invalid_run_name\(name=a{101}\)"):
        TrainerRun(name + "a", config, print)
    monkeypatch.chdir(tmp_path)
    relative = TrainerRun("tiny", settings(tmp_path, output_dir="there"), print)
    assert relative.directory == tmp_path / "there/tiny"


@pytest.mark.parametrize(
    ("whose", "num_refusals", "num_tries"),
    [
        ("own", 0, 1),
        ("own", 41, 42),  # its training has just ended, by an exception
        ("own", 42, None),  # more than two seconds
        ("other", 1, None),
        ("", 1, None),
    ],
)
def test_a_run_that_this_process_has_just_left_is_waited_for(
    run: TrainerRun,
    monkeypatch: pytest.MonkeyPatch,
    whose: str,
    num_refusals: int,
    num_tries: int | None,
) -> None:
    now, tries = [0.0], list[Path]()

    def only(path: Path) -> Any:
        tries.append(path)
        if len(tries) <= num_refusals:
            raise InputError("trainer.extension_needs_own_loop", name="busy")
        return nullcontext()

    def sleep(seconds: float) -> None:
        now[0] = round(now[0] + seconds, 6)

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(trainer_run, "time", clock)
    monkeypatch.setattr(trainer_run, "only_trainer_of", only)
    pid = os.getpid() if whose == "own" else 1
    holder = SimpleNamespace(pid=pid) if whose else None
    monkeypatch.setattr(trainer_run, "read_trainer", lambda path: holder)
    with ExitStack() as stack:
        if num_tries is None:
            with pytest.raises(ValueError, match="busy"):
                run.enter(stack)
            assert now[0] == (2.05 if whose == "own" else 0.0)
        else:
            run.enter(stack)
            assert len(tries) == num_tries
    assert {*tries} == {run.directory}


def test_a_model_is_named_by_where_it_came_from_or_by_its_class() -> None:
    model = torch.nn.Linear(2, 1)
    assert trainer_run.name_and_size(model) == {
        **{"name": "Linear", "num_parameters": 3, "num_trainable": 3},
    }
    model.weight.requires_grad_(False)
    model.config = SimpleNamespace(_name_or_path=f"https://a:{TOKEN}@host/m")  # type: ignore[assignment]
    found: Any = trainer_run.name_and_size(model)
    assert (found["num_parameters"], found["num_trainable"]) == (3, 1)
    assert TOKEN not in found["name"]
    assert "host" in found["name"]
    model.config._name_or_path = ""  # type: ignore[union-attr]
    assert trainer_run.name_and_size(model)["name"] == "Linear"


def test_a_beginning_names_where_no_run_was_found(tmp_path: Path) -> None:
    run = TrainerRun("tiny", at_place(tmp_path), print)
    place = str(run.shown_place)
    assert place.endswith("disk/temper")
    backup = run.copies.backup
    for is_missing, is_new, there in (
        (False, False, f"trainer.nor_at_destination(destination={place})"),
        (False, True, f"trainer.nor_at_new_destination(destination={place})"),
        (True, True, ""),
    ):
        backup.is_missing, backup.is_new = is_missing, is_new
        about = f"run=tiny, folder={tmp_path / 'runs'}, there={there}"
        assert run.none_found() == f"trainer.no_earlier_run({about})"
    alone = TrainerRun("tiny", settings(tmp_path), print)
    assert alone.shown_place is None
    assert alone.none_found().endswith("there=)")
    assert alone.copies_line() == "monitoring.trainer_not_backed_up()"
    assert TrainerRun("tiny", settings(tmp_path), print, True).copies_line() != alone.copies_line()
    whole = TrainerRun("tiny", settings(tmp_path), print, True)
    assert whole.how_to_resume() == "trainer.run_command_again()"
