import json
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import GivenValue, Layer, Source
from infrastructure.config.sections.model_config import LoraConfig, ModelConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.config.sources.load import load_config


def test_defaults_can_be_carried_out() -> None:
    config = DeploymentConfig()
    config.check_supported()
    assert config.notes() == []
    assert {source.place for source in config.sources().values()} == {"default"}


def test_sections_as_keywords_and_as_mappings_are_the_same() -> None:
    by_section = DeploymentConfig(
        training=TrainingConfig(batch_size=4), model=ModelConfig(lora_config=LoraConfig(r=8))
    )
    by_mapping = DeploymentConfig(training={"batch_size": 4}, model={"lora_config": {"r": 8}})
    by_key = DeploymentConfig(**{"training.batch_size": 4, "model.lora_config.r": 8})
    assert by_section.model_dump() == by_mapping.model_dump() == by_key.model_dump()
    assert by_key.model.lora_config == LoraConfig(r=8)
    preset = load_config(environment={}, keywords={"training.max_steps": 9, "preset": "ci"})
    section = TrainingConfig(max_steps=9)  # what it leaves open is that of the preset
    both = load_config(environment={}, keywords={"training": section, "preset": "ci"})
    assert both.training.model_dump() == preset.training.model_dump()


def test_two_configurations_share_nothing() -> None:
    changed = DeploymentConfig()
    changed.training.metrics_sinks.append("jsonl")
    changed.model.embedded.num_layers = 1
    assert DeploymentConfig().training.metrics_sinks != changed.training.metrics_sinks
    assert DeploymentConfig().model.embedded.num_layers != 1


def test_flat_names_can_be_assigned_and_are_checked() -> None:
    config = DeploymentConfig()
    config.batch_size = 64
    assert config.training.batch_size == 64
    assert config.source("training.batch_size").place == "assigned in Python"
    with pytest.raises(ValueError, match=r"setting=training\.batch_size, .*at least 1.*value=0"):
        config.batch_size = 0
    assert config.batch_size == 64


def test_an_unknown_attribute_suggests_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"key=outputdir, section=DeploymentConfig, meant=output_dir"
    ):
        DeploymentConfig().outputdir = "x"


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [
        ("batchsize", "batch_size"),
        ("max_steps", "training.max_steps"),
        ("training.learning_rat", "training.learning_rate"),
        ("trainig.seed", "training.seed"),
        ("dropout", "model.lora_config.dropout"),
        ("log_levle", "log_level"),
        ("trainning", "training"),
        ("resourcs", "resources"),
        ("optimisation", "optimization"),
        ("trainning.seed", "training.seed"),
        ("epohcs", "training.num_epochs"),
        ("max_seq_lenght", "data.max_length"),  # of another tool
        ("num_train_epohcs", "training.num_epochs"),
    ],
)
def test_an_unknown_keyword_suggests_the_nearest(keyword: str, meant: str) -> None:
    with pytest.raises(ValueError, match=r"^config\.unknown_key_meant") as raised:
        DeploymentConfig(**{keyword: 1})
    assert f"(key={keyword}, meant={meant})" in str(raised.value).replace("'", "")


def test_a_keyword_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(ValueError, match=r"^config\.unknown_key_list\(key=xyzzy\)$"):
        DeploymentConfig(xyzzy=1)


def test_of_two_presets_at_once_none_is_chosen() -> None:
    def given(*names: str) -> list[GivenValue]:
        return [
            GivenValue("preset", name, Source(Layer.FORM, f"form {n}"))
            for n, name in enumerate(names)
        ]

    config = DeploymentConfig()
    assert config.changed(given("ci", "ci")).training.max_steps == 6
    refusal = r'two_presets\(first_source=form 0, first="ci", second_source=form 1, second="quick"'
    with pytest.raises(ValueError, match=refusal):
        config.changed(given("ci", "quick"))


@pytest.mark.parametrize(
    ("given", "steps", "used"),
    [(50, 100, None), (50, 99, 49), (50, 9, 4), (0, 1, None), (None, 9, None)],
)
def test_a_warmup_that_was_given_is_shortened_with_a_note(
    given: int | None, steps: int, used: int | None
) -> None:
    config = DeploymentConfig(**({} if given is None else {"training.warmup_steps": given}))
    note = f"config.warmup_too_long(wanted={given}, total_steps={steps}, used={used})"
    assert config.short_warmup(steps) == ([] if used is None else [note])


def test_the_number_of_epochs_is_known_when_a_run_has_it() -> None:
    config = DeploymentConfig()
    assert config.num_epochs == "auto"
    config.note_num_epochs(7)
    assert (config.num_epochs, config.training.num_epochs) == (7, "auto")
    config.num_epochs = 3
    assert (config.num_epochs, config.training.num_epochs) == (3, 3)


def test_several_wrong_values_give_a_sentence_each() -> None:
    with pytest.raises(ValueError, match=r"config\.wrong_value") as raised:
        DeploymentConfig(batch_size=0, log_level="loud", training={"seed": -1})
    prefix = "config.wrong_value(setting="
    assert [line.removeprefix(prefix).split(", ")[0] for line in str(raised.value).split("\n")] == [
        "training.batch_size",
        "log_level",
        "training.seed",
    ]


def test_a_section_needs_keys() -> None:
    with pytest.raises(ValueError, match=r'config\.value_for_a_section\(.*=model, value="phi-4"'):
        DeploymentConfig(model="phi-4")


def test_null_sections_are_empty() -> None:
    assert DeploymentConfig(model=None, training=None).to_dict() == DeploymentConfig().to_dict()


@pytest.mark.parametrize(
    ("given", "held"), [(0, "0"), ([0, 1], "0,1"), ("0", "0"), ("", ""), (None, None)]
)
def test_device_lists(given: object, held: str | None) -> None:
    assert DeploymentConfig(cuda_visible_devices=given).cuda_visible_devices == held


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:11"])
def test_devices(device: str) -> None:
    assert DeploymentConfig(device=device).device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:0", "mps", 0])
def test_wrong_devices(device: object) -> None:
    with pytest.raises(
        ValueError, match=r'=device, allowed="auto", "cpu", "cuda" or a GPU such as'
    ):
        DeploymentConfig(device=device)


def test_round_trip_through_json_keeps_values_and_sources() -> None:
    config = load_config(
        environment={"BATCH_SIZE": "8", "TEMPER_TRAINING__CHECKPOINT_FREQUENCY": "50"},
        flags={"--lora-r": "4", "--seed": "3"},
        keywords={"training": {"time_step_mask_fractions": {0: 0.15, 9: 0.9}}, "run_name": "a"},
    )
    saved = json.loads(json.dumps(config.to_dict()))
    restored = DeploymentConfig.from_dict(saved)
    assert restored.model_dump() == config.model_dump()
    assert restored.sources() == config.sources()
    assert restored.to_dict() == config.to_dict()
    assert restored.training.time_step_mask_fractions == {0: 0.15, 9: 0.9}


def test_a_round_trip_keeps_what_was_assigned() -> None:
    config = DeploymentConfig(batch_size=4)
    config.training.seed = 9
    restored = DeploymentConfig.from_dict(config.to_dict())
    assert restored.source("training.seed").place == "assigned in Python"
    assert restored.source("training.batch_size").place == "keyword batch_size"


def test_a_password_in_a_path_does_not_reach_the_record() -> None:
    config = DeploymentConfig(data_path="https://me:letmein99@example.org/rows.jsonl")
    assert "letmein99" not in json.dumps(config.to_dict())
    assert "letmein99" in str(config.data.path)


def test_a_password_that_was_masked_is_never_read_back() -> None:
    record = DeploymentConfig(model_name="https://me:letmein99@example.org/model").to_dict()
    assert record["masked"] == ["model.name"]
    with pytest.raises(ValueError, match=r"recorded_value_masked.*keys=model\.name\b") as raised:
        DeploymentConfig.from_dict(record)
    assert "letmein99" not in str(raised.value)


def test_stars_that_were_written_by_hand_are_no_mask() -> None:
    config = DeploymentConfig(data={"chat_template": "*** {{ messages }}: ***" * 99})
    assert DeploymentConfig.from_dict(config.to_dict()).model_dump() == config.model_dump()


PATH_KEYS = ["data.path", "data.eval_path", "model.name", "output_dir", "cache.directory"]


@pytest.mark.parametrize("key", [*PATH_KEYS, "data.chat_template"])
@pytest.mark.parametrize("name", ["hf_datasets", "hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"])
def test_a_path_that_looks_like_a_token_is_recorded_as_it_is(key: str, name: str) -> None:
    config = DeploymentConfig(**{key: f"/data/{name}/part"})
    restored = DeploymentConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert restored.value(key) == f"/data/{name}/part"


def test_local_paths_are_recorded_so_that_any_working_directory_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("model", "tactical_mappo", "saved"):
        (tmp_path / folder).mkdir()
    (tmp_path / "rows.jsonl").touch()
    (tmp_path / "chat.jinja").touch()
    config = DeploymentConfig(
        model_name="model",
        data={"path": "rows.jsonl", "eval_path": "saved:test", "chat_template": "chat.jinja"},
        cache={"directory": "not-there-yet"},
    )
    restored = DeploymentConfig.from_dict(config.to_dict())
    assert restored.model.name == str(tmp_path / "model")
    assert restored.data.path == str(tmp_path / "rows.jsonl")
    assert restored.data.eval_path == str(tmp_path / "saved:test")
    assert restored.data.chat_template == str(tmp_path / "chat.jinja")
    assert restored.cache.directory == str(tmp_path / "not-there-yet")
    assert restored.output_dir == "runs"
    assert restored.source("data.path").place == "keyword data.path"
    assert config.data.path == "rows.jsonl"


def test_names_that_are_no_local_path_are_recorded_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tactical_mappo").mkdir()
    config = DeploymentConfig(model_name="tactical_mappo", data_path="owner/name:train")
    config.know_models(["tactical_mappo"])
    restored = DeploymentConfig.from_dict(config.to_dict())
    assert (restored.model.name, restored.data.path) == ("tactical_mappo", "owner/name:train")


def test_lora_that_its_fields_switched_on_names_where_they_were_set() -> None:
    config = load_config(environment={"TEMPER_MODEL__LORA_CONFIG__R": "4"})
    assert config.source("model.lora_config").place == "environment TEMPER_MODEL__LORA_CONFIG__R"
    config = load_config(
        environment={"TEMPER_MODEL__LORA_CONFIG__R": "4"}, flags={"--lora-alpha": "8"}
    )
    assert config.source("model.lora_config").place == "--lora-alpha"
    restored = DeploymentConfig.from_dict(config.to_dict())
    assert restored.sources() == config.sources()


@pytest.mark.parametrize("num_processes", [1, 2, "auto"])
def test_several_gpus_may_be_named(num_processes: int | str) -> None:
    config = DeploymentConfig(cuda_visible_devices=[0, 1], num_processes=num_processes)
    config.check_supported()
    assert config.cuda_visible_devices == "0,1"


def test_a_changed_copy_knows_where_each_value_was_set() -> None:
    config = DeploymentConfig(batch_size=4, checkpoint_interval=2)
    place = Source(Layer.FLAG, "--checkpoint-frequency")
    changed = config.changed([GivenValue("training.checkpoint_frequency", 7, place)])
    assert (changed.batch_size, changed.checkpoint_interval) == (4, None)
    assert changed.training.checkpoint_frequency == 7
    assert changed.source("training.checkpoint_frequency") == place
    assert changed.source("training.batch_size").place == "keyword batch_size"
    assert changed.source("training.seed").layer is Layer.DEFAULT
    assert config.checkpoint_interval == 2


def test_in_a_changed_copy_what_nobody_gave_is_still_not_given() -> None:
    config = DeploymentConfig(batch_size="auto")
    place = Source(Layer.FORM, "form")
    changed = config.changed([GivenValue("training.seed", 7, place)])
    same = DeploymentConfig(**{"batch_size": "auto", "training.seed": 7})
    assert changed.model_dump() == same.model_dump()
    assert changed.training.model_fields_set == same.training.model_fields_set
    assert "gradient_accumulation" not in changed.training.model_fields_set


def test_a_place_with_a_password_is_forgotten_and_stops_nobody() -> None:
    config = DeploymentConfig(backup={"place": "sftp://me:letmein99@host/backups"})
    saved = config.to_dict()
    assert "letmein99" not in str(saved)
    assert saved["masked"] == ["backup.place"]
    assert DeploymentConfig.from_dict(saved).backup.place is None


def test_a_folder_for_backups_is_found_from_anywhere() -> None:
    for place, recorded in (("copies", str(Path("copies").absolute())), ("hf://a/b", "hf://a/b")):
        saved = DeploymentConfig(backup={"place": place}).to_dict()
        assert saved["values"]["backup"]["place"] == recorded


def test_a_changed_copy_keeps_what_was_noted_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tactical_mappo").mkdir()
    config = load_config(environment={}, flags={"--preset": "quick"}, keywords={"training.seed": 9})
    config.know_models(["tactical_mappo"])
    config.note_environment(["of the environment"])
    config.note("once")
    config.note("another")
    config.note("once")
    before = config.notes()
    changed = config.changed(
        [GivenValue("model.name", "tactical_mappo", Source(Layer.FLAG, "--m"))]
    )
    assert [note for note in before if note in changed.notes()] == before
    noted = ("of the environment", "once", "another")
    assert [changed.notes().count(note) for note in noted] == [1, 1, 1]
    assert changed.to_dict()["values"]["model"]["name"] == "tactical_mappo"
    changed.note("of the copy alone")
    assert config.notes() == before


def test_folders_of_ours_are_absolute_before_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"cache.directory": "a", "training.cache_dir": "b", "output_dir": "c"}
    restored = DeploymentConfig.from_dict(DeploymentConfig(**given).to_dict())
    for key, name in given.items():
        assert restored.value(key) == str(tmp_path / name)


def test_one_process_is_not_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infrastructure.config.deployment_config.launched_process", lambda: None)
    assert not DeploymentConfig().has_others
    assert DeploymentConfig(num_processes=2).has_others
    assert DeploymentConfig(num_processes="auto").has_others
    monkeypatch.setattr("infrastructure.config.deployment_config.launched_process", lambda: 0)
    assert DeploymentConfig().has_others
