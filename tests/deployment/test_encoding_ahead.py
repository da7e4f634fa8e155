"""Rows that another process encodes while this one loads PyTorch: real processes, real rows."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.hardware import processor
from infrastructure.core.helper_process import HelperProcess
from infrastructure.data.data_pipeline import DataPipeline
from infrastructure.data.samples import SAMPLE_TOKENIZER, SAMPLE_TRAIN, use_sample_data
from infrastructure.deployment import encoding_ahead
from infrastructure.deployment.encoding_ahead import rows_encoded_ahead
from infrastructure.models.tokenizer import read_tokenizer

PATIENCE_SECONDS = 60.0


@pytest.fixture
def config(tmp_path: Path) -> DeploymentConfig:
    """A training on the sample tasks, with a cache of its own."""
    config = DeploymentConfig(**{"cache.directory": str(tmp_path / "cache")})
    use_sample_data(config)
    return config


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[HelperProcess]]:
    """The processes that have been started, as if PyTorch were not loaded here; none is left."""
    processes: list[HelperProcess] = []

    def start(*arguments: object) -> HelperProcess | None:
        process = start_process(*arguments)  # type: ignore[arg-type]
        processes.extend([process] if process else [])
        return process

    start_process = encoding_ahead._start
    monkeypatch.setattr(encoding_ahead, "_saves_time", lambda: True)
    monkeypatch.setattr(encoding_ahead, "_start", start)
    yield processes
    assert all(process.poll() is not None for process in processes)


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


def entries(config: DeploymentConfig) -> list[str]:
    """What lies in the cache, half made or whole."""
    tokens = Path(str(config.cache.directory)) / "tokens"
    return sorted(p.name for p in tokens.glob("*") if p.name not in (".locks", ".swept"))


def pipeline(config: DeploymentConfig) -> DataPipeline:
    return DataPipeline(config.data, read_tokenizer(SAMPLE_TOKENIZER), cache_config=config.cache)


def few_rows(config: DeploymentConfig, folder: Path) -> None:
    """The first of the sample tasks alone, which still get the tokenizer of all."""
    path = folder / "few.jsonl"
    path.write_text("".join(SAMPLE_TRAIN.read_text().splitlines(keepends=True)[:50]))
    config.data.path = config.data.eval_path = str(path)


def test_a_training_takes_the_rows_that_were_encoded_while_pytorch_was_loaded(
    tmp_path: Path,
) -> None:
    if processor().num_cores == 1:
        pytest.skip("with one core nothing is done ahead")
    environment = {**os.environ, "TEMPER_CACHE__DIRECTORY": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "temper", "train", "--max-steps", "1"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    [record] = (tmp_path / "runs").glob("*/run.json")
    assert json.loads(record.read_text())["data"]["from_cache"]
    [_entry] = (tmp_path / "cache/tokens").glob("[0-9a-f]*")  # the same that the training looks for


def test_the_rows_are_there_as_the_training_would_have_made_them(
    config: DeploymentConfig, started: list[HelperProcess], tmp_path: Path
) -> None:
    few_rows(config, tmp_path)
    ahead = config.changed([])
    ahead.cache.directory = str(tmp_path / "ahead")
    encoding_ahead_of(ahead, started)
    found, made = pipeline(ahead), pipeline(config)
    assert (found.prepare().from_cache, made.prepare().from_cache) == (True, False)
    assert found.fingerprint == made.fingerprint
    assert entries(ahead) == entries(config)


def encoding_ahead_of(config: DeploymentConfig, started: list[HelperProcess]) -> None:
    """Let the process come to its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding_ahead, "known_tokenizer", lambda data, size: SAMPLE_TOKENIZER)
        with rows_encoded_ahead(config):
            wait_until(lambda: started[-1].poll() is not None)


def test_a_training_that_is_given_up_leaves_no_process_and_nothing_half_made(
    config: DeploymentConfig, started: list[HelperProcess]
) -> None:
    def give_up() -> None:
        with rows_encoded_ahead(config):
            wait_until(lambda: [name for name in entries(config) if name.startswith(".partial-")])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give_up()
    assert started[0].poll() is not None
    assert entries(config) == []


def test_where_the_process_fails_the_training_makes_the_rows(
    config: DeploymentConfig,
    started: list[HelperProcess],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    few_rows(config, tmp_path)
    broken = config.changed([])
    broken.data.path = str(tmp_path / "not-there.jsonl")
    with caplog.at_level("DEBUG", encoding_ahead.__name__):
        encoding_ahead_of(broken, started)
        wait_until(
            lambda: "no rows were encoded ahead: core.ended_with_exit_code(code=1" in caplog.text
        )
    assert not pipeline(config).prepare().from_cache


def test_where_no_process_can_be_started_the_training_goes_on(
    config: DeploymentConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(encoding_ahead, "_saves_time", lambda: True)
    monkeypatch.setattr(encoding_ahead, "HelperProcess", refuse)
    with caplog.at_level("DEBUG", encoding_ahead.__name__), rows_encoded_ahead(config):
        pass
    assert "no rows are encoded ahead: no more processes" in caplog.text


def test_nothing_is_done_ahead_where_it_saves_no_time(
    monkeypatch: pytest.MonkeyPatch, config: DeploymentConfig
) -> None:
    monkeypatch.setattr(encoding_ahead, "_start", None)  # which nobody calls
    with rows_encoded_ahead(config):  # PyTorch is loaded here
        pass
    cpu = processor()
    monkeypatch.setattr(encoding_ahead, "processor", lambda: replace(cpu, num_cores=2))
    monkeypatch.delitem(sys.modules, "torch")
    assert encoding_ahead._saves_time()
    monkeypatch.setattr(encoding_ahead, "processor", lambda: replace(cpu, num_cores=1))
    assert not encoding_ahead._saves_time()


@pytest.mark.parametrize(
    ("key", "value", "is_known"),
    [
        ("data.max_length", 64, True),
        ("data.validation_split", 0.2, False),
        ("model.embedded.vocab_size", 999, False),
        ("model.name", "./my-llama", False),
        ("training.method", "dpo", False),
        ("training.time_step_masking", True, False),
    ],
)
def test_only_rows_whose_tokenizer_is_known_are_encoded_ahead(
    config: DeploymentConfig, key: str, value: object, is_known: bool
) -> None:
    section, _, name = key.rpartition(".")
    held = config
    for part in section.split("."):
        held = getattr(held, part)
    setattr(held, name, value)
    tokenizer = encoding_ahead._tokenizer_of(config)
    assert tokenizer == (SAMPLE_TOKENIZER if is_known else None)
