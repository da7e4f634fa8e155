from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig, MemoryConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.config.types import amount_bytes, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("8GB", 8 * 10**9),
        ("2 GB", 2 * 10**9),
        ("40gb", 40 * 10**9),
        ("1.5MB", 1_500_000),
        ("8GiB", 8 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("1000", 1000),
        ("0.5KB", 500),
        (" 1TB ", 10**12),
    ],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "8 G B", "8XB", "-1GB", "1e3", "eight", "90%", "1,5GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"^config\.invalid_size") as raised:
        parse_size(text)
    assert f"(text={text})" in str(raised.value)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(8 * 10**9, "8GB"), (1_500_000, "1500KB"), (1, "1B"), (2**30, "1073741824B"), (0, "0B")],
)
def test_formatting_is_exact(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    ("amount", "num_bytes"), [("90%", 900), ("12.5%", 125), ("100B", 100), ("1KB", 1000)]
)
def test_amounts_in_bytes(amount: str, num_bytes: int) -> None:
    assert amount_bytes(amount, total_bytes=1000) == num_bytes


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ("90 %", "90%"),
        ("90.0%", "90%"),
        ("2 gb", "2GB"),
        (2 * 10**9, "2GB"),
        ("1GiB", "1073741824B"),
    ],
)
def test_one_spelling_for_each_amount(given: object, held: str) -> None:
    assert DataConfig(memory_limit=given).memory_limit == held


@pytest.mark.parametrize(
    "given", ["0%", "101%", "0GB", 0, -5, True, 1.5, "much", "90", 999_999, [1]]
)
def test_what_is_no_amount(given: object) -> None:
    with pytest.raises(ValueError, match=r"=data\.memory_limit, allowed=a size of at least 1MB"):
        DataConfig(memory_limit=given)


@pytest.mark.parametrize(("given", "held"), [(500, 500), ("500", 500), ("10GB", 10000), (0, 0)])
def test_megabytes(given: object, held: int) -> None:
    assert CacheConfig(disk_size=given).disk_size == held


@pytest.mark.parametrize("given", [-1, "1.5KB", "x", True])
def test_what_is_no_number_of_megabytes(given: object) -> None:
    with pytest.raises(ValueError, match=r"=cache\.disk_size, allowed=a whole number of megab"):
        CacheConfig(disk_size=given)


@pytest.mark.parametrize(("given", "held"), [(5, 5.0), ("5", 5.0), ("5%", 5.0), ("7.5 %", 7.5)])
def test_percentages(given: object, held: float) -> None:
    assert DataConfig(max_bad_rows_percent=given).max_bad_rows_percent == held


@pytest.mark.parametrize("given", [-1, 101, "120%", "many", True])
def test_what_is_no_percentage(given: object) -> None:
    with pytest.raises(ValueError, match=r"max_bad_rows_percent, allowed=a percentage from 0 to"):
        DataConfig(max_bad_rows_percent=given)


def test_a_share_of_the_gpu() -> None:
    assert MemoryConfig(gpu_memory_fraction=1).gpu_memory_fraction == 1
    with pytest.raises(ValueError, match=r"gpu_memory_fraction, allowed=a number above 0 and at"):
        MemoryConfig(gpu_memory_fraction=1.1)


COUNTS = ["training.batch_size", "training.gradient_accumulation", "training.max_steps"]


@pytest.mark.parametrize("key", [*COUNTS, "training.warmup_steps", "cache.disk_size"])
def test_a_count_has_an_upper_bound(key: str) -> None:
    with pytest.raises(ValueError, match=rf"setting={key}, .*, value={10**30}") as raised:
        DeploymentConfig(**{key: 10**30})
    assert "2147483647" in str(raised.value) or "megabytes" in str(raised.value)
    assert DeploymentConfig(**{key: 2**31 - 1}).value(key) == 2**31 - 1


PATHS = ["model.name", "data.path", "data.eval_path", "data.chat_template", "cache.directory"]


@pytest.mark.parametrize("key", [*PATHS, "training.cache_dir", "output_dir"])
def test_a_path_object_is_taken_where_a_path_is_wanted(key: str) -> None:
    assert DeploymentConfig(**{key: Path("some/place")}).value(key) == "some/place"
    config = DeploymentConfig()
    section, _, name = key.rpartition(".")
    setattr(getattr(config, section) if section else config, name, Path("other"))
    assert config.value(key) == "other"


def test_a_home_folder_in_a_path_object_is_expanded() -> None:
    assert DeploymentConfig(data_path=Path("~/rows.jsonl")).data.path == str(
        Path("~/rows.jsonl").expanduser()
    )


@pytest.mark.parametrize(
    "name", ["hf_AbCdEfGhIjKlMnOpQrStUvWxYz", "run-token=abcdef123", "https://me:pw@host"]
)
def test_a_secret_is_no_name_of_a_run(name: str) -> None:
    with pytest.raises(ValueError, match=r"config.wrong_value\(setting=run_name, ") as raised:
        DeploymentConfig(run_name=name)
    assert name not in str(raised.value)
    assert DeploymentConfig(run_name="first try").run_name == "first try"


def test_a_deadline_has_a_unit() -> None:
    for given, seconds in (("11h", 39600.0), ("30s", 30.0), (7200, 7200.0), (0.5, 0.5)):
        assert TrainingConfig(deadline=given).deadline == seconds
    short = DeploymentConfig(training={"deadline": "30s"})
    assert DeploymentConfig.from_dict(short.to_dict()).training.deadline == 30  # of a run.json
    for wrong in ("11", 11, "-1h", "0"):
        with pytest.raises(ValueError, match=r"deadline, allowed=a duration with its un"):
            TrainingConfig(deadline=wrong)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("60", 60.0),
        (60, 60.0),
        ("90min", 5400.0),
        ("2 m", 120.0),
        ("1.5h", 5400.0),
        ("2d", 172800.0),
        (".5s", 0.5),
        ("59", None),
        (59, None),
        ("59.0", None),
        ("1w", None),
        ("h", None),
        (True, None),
    ],
)
def test_a_time_limit_is_in_seconds(given: object, seconds: float | None) -> None:
    if seconds is not None:
        assert TrainingConfig(deadline=given).deadline == seconds
    else:
        with pytest.raises(ValueError, match=r"setting=training\.deadline"):
            TrainingConfig(deadline=given)


@pytest.mark.parametrize(
    ("given", "held"),
    [("White", "white"), ("#8090FF", "#8090ff"), ("red", None), ("#8090f", None), ("8090ff", None)],
)
def test_a_background_is_a_name_or_a_number(given: str, held: str | None) -> None:
    if held is not None:
        assert DataConfig(image_background=given).image_background == held
    else:
        with pytest.raises(ValueError, match=r"setting=data\.image_background"):
            DataConfig(image_background=given)


def test_rows_are_held_out_by_a_share_or_a_file() -> None:
    assert DataConfig().holds_out
    assert not DataConfig(validation_split=0).holds_out
    assert DataConfig(validation_split=0, eval_path="a.jsonl").holds_out
    assert DataConfig().max_unlearnable_percent == 1.0
    assert DataConfig(max_bad_rows_percent=5).max_unlearnable_percent == 5.0
    assert DataConfig(max_bad_rows_percent=0.5).max_unlearnable_percent == 0.5


@pytest.mark.parametrize(
    "key", ["monitor.alert_sinks", "training.metrics_sinks", "training.rewards", "training.metrics"]
)
def test_an_item_of_a_list_may_be_given_only_once(key: str) -> None:
    with pytest.raises(ValueError, match=rf"config\.wrong_value\(setting={key}, "):
        DeploymentConfig(**{key: ["own:one", "own:two", "own:one"]})
    assert DeploymentConfig(**{key: ["own:one", "own:two"]}).value(key) == ["own:one", "own:two"]
