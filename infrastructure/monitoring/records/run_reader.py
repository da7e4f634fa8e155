"""A reader of the small files in a run directory, which tolerates missing and damaged files.

A file that is missing or unreadable counts as empty. For a damaged file, a sentence is added to
`problems`. Nothing on the disk is changed.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infrastructure.core.errors import InputError
from infrastructure.core.features import run_files_of_features
from infrastructure.core.json_text import JsonObject, JsonValue, parse_json
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import clip, format_moment
from infrastructure.monitoring.drawing.metrics_file import FINITE_AGAIN
from infrastructure.monitoring.records.run_list import FINAL

METRICS_FILE = "metrics.jsonl"
ERRORS_FILE = "logs/errors/errors.jsonl"
CHECKS_FILE = "checks.json"
HEAD_FILES = ("run.json", "summary.json")  # which run it is, and its state
SMALL_FILES = (
    *HEAD_FILES,
    "data_report.json",
    "checkpoints/backup.json",
    CHECKS_FILE,
    *run_files_of_features(),
)

MAX_NAME_CHARACTERS = 60
MAX_INITIALS = 4  # of a method named by its initials: DPO, GRPO
MADE_FROM_THE_TIME = re.compile(r"20\d{6}-\d{6}-(.*)-[0-9a-f]{4}")
OWN_MODEL, SAMPLE_TASKS = "small model from scratch", "sample tasks"
SAMPLES = re.compile(r"samples?$|.*[/\\]infrastructure[/\\]training[/\\]data[/\\]samples[/\\]")

FINISHED = "finished"
STATUSES = (FINISHED, "stopped", "failed", "running")


@dataclass
class RunFacts:
    """The contents of a run's small files, such as run.json and summary.json.

    Attributes:
        files: file name → contents of each readable file.
        problems: one sentence for each file that could not be read.
    """

    directory: Path
    files: dict[str, JsonValue] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def object_in(self, name: str) -> JsonObject:
        """Return the JSON object in the file `name`; an empty object if there is none."""
        content = self.files.get(name)
        return dict(content) if isinstance(content, dict) else {}

    @property
    def run(self) -> JsonObject:
        return self.object_in("run.json")

    @property
    def summary(self) -> JsonObject:
        return self.object_in("summary.json")

    @property
    def run_id(self) -> str:
        return str(self.run.get("run_id") or self.directory.resolve().name)

    @property
    def title(self) -> str:
        """The run's name; without a name, a title made of the model, the data and the time of its
        start.
        """
        return title_of(self.run, self.run_id)

    @property
    def status(self) -> str:
        """The status: finished, stopped, failed or running. A run without a summary is running."""
        status = str(self.summary.get("status", "running"))
        return status if status in STATUSES else "running"

    @property
    def copies(self) -> dict[str, object]:
        """The status of the run's backup, as last recorded.

        If none has been recorded yet, only the destination from the configuration is known.
        """
        config = {key: value for key, (value, _) in config_of(self.run).items()}
        place = config.get("backup.place") if config.get("enable_backups", True) else None
        ended = self.summary.get("backup")
        known = self.object_in("checkpoints/backup.json")
        return {"place": place, **known, **(ended if isinstance(ended, Mapping) else {})}


def brought_back_from(run: Mapping[str, object]) -> str | None:
    """Return the destination from which a run was restored, or None."""
    back = run.get("brought_back")
    return str(back["place"]) if isinstance(back, Mapping) and "place" in back else None


def continuations(facts: RunFacts) -> list[JsonObject]:
    """Return the records of the resumes of a run, the oldest first.

    For a restored run, they are in run.json.
    """
    return objects_in(facts.summary.get("went_on") or facts.run.get("went_on"))


def config_of(run: Mapping[str, object]) -> dict[str, tuple[object, str]]:
    """Return the configuration in run.json: (value, source) by key."""
    config = run.get("config")
    pairs = config.items() if isinstance(config, Mapping) else []
    return {
        str(key): (entry.get("value"), str(entry.get("source", "")))
        if isinstance(entry, Mapping)
        else (entry, "")
        for key, entry in pairs
    }


def title_of(run: Mapping[str, object], run_id: str) -> str:
    """Return the title of a run, from its run.json.

    The title is the name that the user gave. Without a name, it consists of the model, the data and
    the time; or it is the ID, if the ID does not begin with a time (as for the user's own Trainer).
    """
    config = config_of(run)
    name, model = (config.get(key, (None, ""))[0] for key in ("run_name", "model.name"))
    created = run.get("created")
    if isinstance(name, str) and name:
        return clip(name, MAX_NAME_CHARACTERS)
    if not MADE_FROM_THE_TIME.fullmatch(run_id) or not isinstance(model, str):
        return run_id
    began = f", {format_moment(created)}" if isinstance(created, str) else ""
    return training_words(config) + clip(began, MAX_NAME_CHARACTERS)


def training_words(config: Mapping[str, tuple[object, str]]) -> str:
    """Describe model, method and data, such as `tiny-llama, DPO on pairs.jsonl`; "" if unknown."""
    model, data, method, lora = (
        config.get(key, (None, ""))[0]
        for key in ("model.name", "data.path", "training.method", "model.lora_config")
    )
    if not isinstance(model, str):
        return ""
    text = model_words(model) + (", LoRA" if isinstance(lora, dict) else "")
    if isinstance(method, str) and method != "sft":
        text += f", {method.upper() if len(method) <= MAX_INITIALS else method}"
    return text + (f" on {data_words(data)}" if isinstance(data, str) else "")


def model_words(model: str) -> str:
    """Return the display name of a model. If a run trained the model, this is the name of
    the run.
    """
    parts = re.split(r"[/\\]", model.rstrip("/\\"))
    if len(parts) > 1 and parts[-1] == FINAL:
        parts.pop()
    run = MADE_FROM_THE_TIME.fullmatch(parts[-1])
    return OWN_MODEL if model == "embedded" else _short(run[1] if run else parts[-1])


def data_words(data: str) -> str:
    """Return the display name of a data set, given its path or name."""
    return SAMPLE_TASKS if SAMPLES.match(data) else _short(data)


def _short(path: str) -> str:
    """Return the last part of a path or of a Hub name."""
    return clip(re.split(r"[/\\]", path.rstrip("/\\"))[-1] or path, MAX_NAME_CHARACTERS)


def numbers_of(value: object) -> dict[str, object]:
    """Return `{"eval_loss": …, "exact_match": {…}}` with only those metrics that are numbers."""
    if not isinstance(value, Mapping):
        return {}
    numbers: dict[str, object] = {}
    for key, inner in value.items():
        inner = FINITE_AGAIN.get(inner, inner) if isinstance(inner, str) else inner
        if isinstance(inner, Mapping):
            numbers[str(key)] = numbers_of(inner)
        elif isinstance(inner, int | float):
            numbers[str(key)] = inner
    return numbers


def read_small_files(directory: Path, names: Iterable[str] = SMALL_FILES) -> RunFacts:
    """Return the contents of a run's small files. Its logs, which may be long, are not read.

    Raises:
        ValueError: if there is no such directory.
    """
    if not directory.is_dir():
        raise InputError("monitoring.not_a_run_directory", directory=directory)
    facts = RunFacts(directory)
    for name in names:
        try:
            content = parse_json((directory / name).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            facts.problems.append(phrase("monitoring.file_unreadable", name=name, error=error))
            continue
        if isinstance(content, list if name == CHECKS_FILE else dict):
            facts.files[name] = content
        else:
            facts.problems.append(phrase("monitoring.file_content_unexpected", name=name))
    return facts


def read_rounds(run_directory: Path) -> list[JsonObject]:
    """Return the results of all rounds of checks of a run, the oldest first; empty if there are
    none, or they cannot be read.
    """
    try:
        return objects_in(parse_json((run_directory / CHECKS_FILE).read_bytes()))
    except (OSError, ValueError):
        return []


def objects_in(value: object) -> list[JsonObject]:
    """Return the JSON objects in a list. Other items are left out."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
