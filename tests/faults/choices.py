"""Every value of every choice that the configuration offers, found in its schema, and trainings of
two steps with them that are killed after the first.

    python -m tests.faults.choices

reads jobs from standard input, a JSON object a line, and answers each with one: see `Job`, `Told`.
Each training is a fork of this process, which has imported what they all need.
"""

import contextlib
import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import h5py
import openpyxl
import torch
from datasets import Dataset

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import leaves, metadata_of
from infrastructure.config.schema import FieldSpec, schema_of
from infrastructure.config.types import RegisteredName
from infrastructure.core.errors import MissingPackageError, MissingSecretError
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.features.quantum.sampler_needs import check_sampler
from infrastructure.features.quantum.samplers.sampler_factory import SAMPLERS
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.core.state import TrainingState
from infrastructure.training.extensions.extension_hooks import Observer
from tests.deployment.runs import small_settings
from tests.forks import Forked, import_what_takes_long

ROOT = Path(__file__).resolve().parents[2]
FIELDS = schema_of(DeploymentConfig).fields
NUM_STEPS = 2
NEW_RUN = "new_run"  # asked for again, it begins another one

# Names that a registry holds: their fields are texts, because others may add to them.
REGISTERED: dict[str, tuple[str, ...]] = {
    "quantum.solver": tuple(SAMPLERS),
}
# What a value needs beside it to mean anything. The first key that fits counts.
QUANTUM: dict[str, Any] = {
    "training.enabled_extensions": ["quantum"],
    "training.optimization_frequency": 1,
    "quantum.max_overhead_percent": 1e6,
    "quantum.max_qubits": 8,
}
ONE_STACK: dict[str, Any] = {"training.progressive.target_stacks": 1}
GROWING: dict[str, Any] = {"training.strategy": "progressive", **ONE_STACK}
# The saved model's tokenizer has no token to mask with; the embedded one has.
MASKED: dict[str, Any] = {"training.time_step_masking": True, "model.name": "embedded"}
ONE_UNIT: dict[str, Any] = {"training.mode": "blockwise", "training.block_size": 99}
QLORA: dict[str, Any] = {**ONE_UNIT, "training.qlora_enabled": True}
OF_ANOTHER_FILE = ("json", "csv", "tsv", "text", "parquet", "hdf5", "huggingface")
NEEDS: dict[str, dict[str, Any]] = {
    "model.trust_remote_code": {"model.name": "{llama}"},
    "model.backend=unsloth": {"model.name": "{llama}", "model.lora_config": True},
    "model.quantization": {"model.name": "{llama}", "model.lora_config": True},
    "model.lora_config.": {"model.name": "{llama}"},
    "model.dtype=fp16": {"model.lora_config": True},
    "model.adapter=tactical_mappo": {"model.name": "tactical_mappo"},
    **{f"data.format={name}": {"data.path": f"{{folder}}/rows.{name}"} for name in OF_ANOTHER_FILE},
    "data.format=excel": {"data.path": "{folder}/rows.xlsx"},
    "training.gradient_checkpointing_mode": {"training.gradient_checkpointing": True},
    "training.progressive.": GROWING,
    "training.mode=layerwise": {"model.name": "embedded", "model.embedded.num_layers": 1},
    "training.mode=": {"training.block_size": 99},
    "training.end_to_end_scope": {"training.strategy": "end_to_end", **ONE_STACK},
    "training.strategy=progressive": ONE_STACK,
    "training.local_loss": ONE_UNIT,
    "training.time_step_masking=True": MASKED,
    "training.time_interpretation": MASKED,
    "training.corruption": MASKED,
    "training.mask_weighting": MASKED,
    "training.store_all_time_steps": {**MASKED, **ONE_UNIT},
    "training.cache_": ONE_UNIT,
    "training.quantization_enabled": ONE_UNIT,
    "training.backbone_quantized": ONE_UNIT,
    "training.quantization_type": {**ONE_UNIT, "training.quantization_enabled": True},
    "training.adapters_full_precision": QLORA,
    "training.qlora_": QLORA,
    "training.save_": ONE_UNIT,
    "training.memory.": {"training.enabled_extensions": ["memory"]},
    "training.extension_learning_rate": {"training.enabled_extensions": ["memory"]},
    "backup.": {"backup.place": "{folder}/place"},
    "quantum.": QUANTUM,
}
# Compiling takes the better part of a minute, and unsloth changes the process that imports it.
SLOW = ("training.compile_mode=", "model.backend=unsloth")
# Another trainer, stages of which two steps have one, conversations, experts, rounded weights, and
# pictures: those of `test_kills_of_features`, and of tests/training/methods and model_adapters.
ELSEWHERE = (
    *("training.method=", "training.strategy=curriculum", "training.curriculum_"),
    *("model.adapter=dialogue", "model.adapter=multimodal", "model.train_vision"),
    "model.quantization_aware",
    "training.enabled_extensions=['multimodal']",
    *("training.shard=yes", "training.shard=offload"),  # they need two processes
)
# Its model is a small one of its own, which takes few of the other choices.
ALONE = ("model.adapter=tactical_mappo", "training.mode=layerwise")


@dataclass(frozen=True)
class Choice:
    """One value of one field."""

    key: str
    value: Any

    def __str__(self) -> str:
        return f"{self.key}={json.dumps(self.value)}"

    @property
    def is_slow(self) -> bool:
        return f"{self.key}={self.value}".startswith(SLOW)

    @property
    def is_alone(self) -> bool:
        return f"{self.key}={self.value}" in ALONE

    @property
    def needs(self) -> dict[str, Any]:
        """The settings that go with it."""
        text = f"{self.key}={self.value}"
        return next((more for start, more in NEEDS.items() if text.startswith(start)), {})


def every_choice() -> list[Choice]:
    """The values that are words, of every field, in the order of the schema; the defaults are those
    of every training that gives no other."""
    return [
        Choice(key, value)
        for key, spec in FIELDS.items()
        for value in values_of(spec)
        if value != (False if spec.is_switch else spec.default)
        and not f"{key}={value}".startswith(ELSEWHERE)
    ]


def values_of(spec: FieldSpec) -> Iterator[Any]:
    """Its words, truth values and "none"; of a list of words each of them, and no word."""
    if named := metadata_of(spec.info, RegisteredName):
        names = (*named.others, *named.registry.built_in)
        is_list = any(get_origin(leaf) is list for leaf in leaves(spec.info.annotation))
        yield from [*([name] for name in names), []] if is_list else names
        return
    if spec.key in REGISTERED:
        yield from REGISTERED[spec.key]
        return
    if spec.is_switch:
        yield from (True, False)
        return
    for leaf in leaves(spec.info.annotation):
        if get_origin(leaf) is Literal:
            yield from get_args(leaf)
        elif leaf is bool:
            yield from (True, False)
        elif leaf is type(None):
            yield None
        elif get_origin(leaf) is list and get_origin(get_args(leaf)[0]) is Literal:
            yield from ([word] for word in get_args(get_args(leaf)[0]))
            yield []


def refusal(choice: Choice) -> str | None:
    """Part of the sentence that refuses it: as this machine is for what it cannot do; None: it
    trains."""
    if choice.key == "quantum.solver":
        try:
            check_sampler(choice.value)
        except (MissingPackageError, MissingSecretError) as error:
            return str(error)
    if choice.key == "training.best_metric_mode":  # tests/deployment/test_best_metric.py has one
        return "config.unused_metric_is_built_in("
    if isinstance(choice.value, list):
        return next((name for name in choice.value if name in OF_A_SERVICE), None)
    if torch.cuda.is_available():
        return None
    return WITHOUT_GPU.get((choice.key, choice.value)) if isinstance(choice.value, str) else None


# Sinks that need a package which is not among the tested ones, or an address of their own.
OF_A_SERVICE = ("trackio", "wandb", "apprise")
WITHOUT_GPU = {
    ("model.attention", "flash_attention_2"): "models.flash_attention_unavailable(",
    ("training.mixed_precision", "fp16"): "core.fp16_needs_gpu(",
    ("training.mixed_precision", "fp8"): "core.fp8_needs_newer_gpu(",
    ("device", "cuda"): "core.pytorch_sees_no_gpu(device=cuda)",
}


@dataclass
class Row:
    """Choices that can be made in one training."""

    choices: list[Choice] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def takes(self, choice: Choice, base: Mapping[str, Any]) -> bool:
        """Whether it goes with the choices that are here; then it is one of them."""
        wanted = {**choice.needs, choice.key: choice.value}
        chosen = {one.key for one in self.choices}
        if self.choices and (choice.is_alone or self.choices[0].is_alone):
            return False
        if any(key in self.settings and self.settings[key] != wanted[key] for key in wanted):
            return False
        if choice.key in chosen:
            return False
        settings = {**self.settings, **wanted}
        if _why_not(together(base, settings)):
            return False
        self.settings = settings
        self.choices.append(choice)
        return True


def rows_of(choices: list[Choice], base: Mapping[str, Any]) -> list[Row]:
    """Few trainings in which all the choices are made, each in the first that it goes with."""
    rows: list[Row] = []
    for choice in choices:
        if not any(row.takes(choice, base) for row in rows):
            rows.append(Row())
            if not rows[-1].takes(choice, base):
                alone = together(base, {**choice.needs, choice.key: choice.value})
                raise AssertionError(f"{choice} goes with nothing: {_why_not(alone)}")
    return rows


def _why_not(settings: Mapping[str, Any]) -> str:
    """What keeps these settings from standing together; empty where nothing does."""
    try:
        DeploymentConfig(**settings).check_supported()
    except ConfigurationError as error:
        return str(error)
    return ""


def base_settings(folder: Path) -> dict[str, Any]:
    """A small training in `folder`, as quick as can be, by canonical key."""
    sections = small_settings(
        folder, max_steps=NUM_STEPS, num_epochs=1, checkpoint_frequency=1, batch_size=2
    )
    sections["model"]["embedded"]["num_layers"] = 2  # block selection has a choice then
    return {**dict(_flat(sections)), "data.validation_split": 0.2}


def together(base: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Both; the shape of the embedded model is left out where the model is another."""
    is_other = "model.name" in settings
    kept = {k: v for k, v in base.items() if not (is_other and k.startswith("model.embedded."))}
    return {**kept, **settings}


def _flat(sections: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in sections.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def write_data_of(settings: Mapping[str, Any], rows: list[dict[str, str]]) -> None:
    """Rows as the file that `data.path` names, where it is of a format that a choice names."""
    path = Path(settings["data.path"])
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    match path.suffix:
        case ".json":
            path.write_text(json.dumps(rows))
        case ".csv" | ".tsv" as suffix:
            Dataset.from_dict(columns).to_csv(str(path), sep="," if suffix == ".csv" else "\t")
        case ".text":
            path.write_text("\n".join(" ".join(row.values()) for row in rows))
        case ".xlsx":
            book = openpyxl.Workbook()
            for line in (list(columns), *zip(*columns.values(), strict=True)):
                book.active.append(line)
            book.save(path)
        case ".parquet":
            Dataset.from_dict(columns).to_parquet(str(path))
        case ".hdf5":
            with h5py.File(path, "w") as file:
                for name, values in columns.items():
                    file.create_dataset(name, data=values)
        case ".huggingface":
            Dataset.from_dict(columns).save_to_disk(str(path))


@dataclass(frozen=True)
class Job:
    """A training in `folder`, and where it was killed, the same again.

    Attributes:
        kill: the first of them is killed when its second step begins.
    """

    folder: str
    settings: dict[str, Any]
    kill: bool


@dataclass(frozen=True)
class ChildResult:
    """What came of a job.

    Attributes:
        error: class and text of what the last training raised.
        directories: what lies in the output folder.
        step: of the newest checkpoint; None: there is none.
        weights: hash of the trained model's file.
        quantum: what became of each quantum step.
    """

    was_killed: bool = False
    error: tuple[str, str] | None = None
    directories: tuple[str, ...] = ()
    step: int | None = None
    weights: str | None = None
    quantum: tuple[str, ...] = ()


class Trainings:
    """The process that forks the trainings."""

    def __init__(self) -> None:
        import_what_takes_long()
        # an address that nobody listens at: a sink of alerts that has nothing to tell
        environment = {**os.environ, "ALERT_WEBHOOK_URL": "http://127.0.0.1:9/"}
        self._process = Forked(
            main,
            cwd=ROOT,
            env={**environment, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, job: Job) -> ChildResult:
        """Do one, and wait for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asdict(job)), file=self._process.stdin, flush=True)
        values = json.loads(self._process.stdout.readline())
        as_tuples = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return ChildResult(**as_tuples)

    def close(self) -> None:
        with self._process:  # closes its pipes
            self._process.kill()


class KillAtSecondStep(Observer):
    """SIGKILL: nothing of this process is asked before."""

    def step_start(self, state: TrainingState) -> None:
        if state.step == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def train(job: Job, kill: bool) -> None:
    """In a process of its own."""
    if kill:
        observers = TrainingDeployment._observers
        TrainingDeployment._observers = (  # type: ignore[method-assign]
            lambda self, run, copies: [*observers(self, run, copies), KillAtSecondStep()]
        )
    error = None
    try:
        TrainingDeployment(DeploymentConfig(**job.settings), say=lambda line: None).run()
    except Exception as raised:
        error = type(raised).__name__, str(raised), isinstance(raised, ValueError)
    (Path(job.folder) / "error.json").write_text(json.dumps(error))


def in_child(job: Job, kill: bool) -> int:
    """The exit status of a fork that trains; what it says goes to a file."""
    child = os.fork()
    if child == 0:
        try:
            log = os.open(f"{job.folder}/log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            train(job, kill)
        finally:
            sys.stdout.flush()
            os._exit(0)
    return os.waitpid(child, 0)[1]


def do(job: Job) -> ChildResult:
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    error_file = folder / "error.json"
    error_file.unlink(missing_ok=True)
    status = in_child(job, job.kill)
    was_killed = os.WIFSIGNALED(status)
    if was_killed:
        settings = {key: value for key, value in job.settings.items() if key != NEW_RUN}
        in_child(replace(job, settings=settings), kill=False)
    if not error_file.exists():
        return ChildResult(was_killed, error=("died", (folder / "log.txt").read_text()[-2000:]))
    error = json.loads(error_file.read_text())
    runs = sorted((folder / "runs").glob("*/"))
    result = ChildResult(
        was_killed,
        error=None if error is None else (error[0], error[1]),
        directories=tuple(run.name for run in runs),
    )
    return result if len(runs) != 1 or error else _finished(result, runs[0])


def _finished(result: ChildResult, run: Path) -> ChildResult:
    weights = next((run / "final").glob("*.safetensors"), None)
    records = []
    with contextlib.suppress(OSError):
        records = json.loads((run / "quantum.json").read_text())["records"]
    return ChildResult(
        result.was_killed,
        None,
        result.directories,
        step_of(CheckpointManager(run / "checkpoints").newest()),
        hashlib.sha256(weights.read_bytes()).hexdigest() if weights else None,
        tuple(record["outcome"] for record in records),
    )


def main() -> None:
    torch.set_num_threads(1)
    import_what_takes_long()
    gc.freeze()  # a training collects garbage, and need not look at all that was imported
    for line in sys.stdin:
        print(json.dumps(asdict(do(Job(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
