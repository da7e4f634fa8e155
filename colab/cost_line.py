"""The cost of a run, as far as it is known without measuring a step.

The number of steps is computed from the settings. Existing run directories show whether a run would
resume, and what was measured when it started. This module does not load torch.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from infrastructure.config.auto import FINETUNE_EPOCHS, SCRATCH_EPOCHS, trains_from_scratch
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.fingerprint import differing_keys, result_settings
from infrastructure.core.json_text import json_of
from infrastructure.core.messages import phrase
from infrastructure.core.price import parse_price
from infrastructure.data.samples import use_sample_data
from infrastructure.monitoring.drawing.formatting import format_bytes, format_duration
from infrastructure.monitoring.records.run_list import RUN_FILE, runs_in
from infrastructure.monitoring.records.run_owner import read_trainer
from infrastructure.monitoring.records.run_reader import RunFacts, read_small_files
from infrastructure.run.directory import RunDirectory

# Only this many of the newest runs are searched for one to resume; the training searches all.
NEWEST = 50
FORECAST_FILE = "forecast.json"


class KnownCosts:
    """The known costs of a configuration, without measuring. Records of runs are cached."""

    def __init__(self) -> None:
        self._purposes: dict[Path, tuple[float, Mapping[str, object] | None]] = {}

    def lines(self, config: DeploymentConfig) -> list[str]:
        """Return lines on the length of the run, on an existing run, and on its backup."""
        config = config.changed([])
        use_sample_data(config)
        return [
            phrase("notebook.it_trains", extent=_extent(config)),
            *self._run(config),
            _copies(config),
        ]

    def _run(self, config: DeploymentConfig) -> Iterator[str]:
        try:
            run = None if config.new_run else self._of_this_purpose(config)
        except (OSError, ValueError) as error:  # deleted or unreadable: only for display
            yield phrase("notebook.runs_unreadable", output_dir=config.output_dir, error=error)
            return
        if run is None:
            yield phrase("notebook.new_run_starts", output_dir=config.output_dir)
            return
        yield _standing(run)
        forecast = json_of(run.directory / FORECAST_FILE)
        numbers = [forecast.get(name) for name in ("seconds", "num_steps", "peak_memory_bytes")]
        known = [number for number in numbers if isinstance(number, int | float)]
        if len(known) == len(numbers):
            seconds, steps, peak = known
            price = config.price_per_hour
            cost = "" if price is None else f", so about {parse_price(price).text(seconds)},"
            yield (
                phrase(
                    "notebook.measured_at_last_start",
                    duration=format_duration(seconds),
                    cost=cost,
                    steps=steps,
                    peak=format_bytes(peak),
                )
            )

    def _of_this_purpose(self, config: DeploymentConfig) -> RunFacts | None:
        wanted = result_settings(config)
        for path in reversed(runs_in(Path(config.output_dir))[-NEWEST:]):
            purpose = self._purpose(path)
            if purpose is not None and not any(differing_keys(purpose, wanted)):
                return read_small_files(path)
        return None

    def _purpose(self, path: Path) -> Mapping[str, object] | None:
        """Return the settings that determine a run's result; None if they are unreadable."""
        changed_at = (path / RUN_FILE).stat().st_mtime
        known = self._purposes.get(path)
        if known is None or known[0] != changed_at:
            self._purposes[path] = known = (changed_at, _purpose_in(path))
        return known[1]


def _extent(config: DeploymentConfig) -> str:
    """Return a text with the number of steps or epochs, and the examples of a step."""
    training = config.training
    if training.batch_size == "auto":
        batch = phrase("notebook.fastest_batch_measured")
    else:
        num_examples = training.batch_size * training.gradient_accumulation
        batch = phrase("notebook.num_examples", count=num_examples)
    if training.max_steps is not None and training.num_epochs == "auto":
        return phrase("notebook.steps_of_batch", steps=training.max_steps, batch=batch)
    at_most = ""
    if training.max_steps is not None:
        at_most = phrase("notebook.at_most_steps", steps=training.max_steps)
    return phrase("notebook.epochs_in_steps", epochs=_epochs(config), batch=batch, at_most=at_most)


def _epochs(config: DeploymentConfig) -> str:
    num_epochs = config.training.num_epochs
    if num_epochs == "auto":
        if trains_from_scratch(config.model):
            return f"{SCRATCH_EPOCHS} epochs"
        return phrase(
            "notebook.default_epochs",
            finetune_epochs=FINETUNE_EPOCHS,
            scratch_epochs=SCRATCH_EPOCHS,
        )
    return f"{num_epochs} epoch{'s' * (num_epochs > 1)}"


def _standing(facts: RunFacts) -> str:
    """Return a text about an existing run with the same settings, and what happens to it."""
    name = facts.run_id
    trainer = read_trainer(facts.directory)
    if trainer is not None and trainer.is_alive:
        return phrase("notebook.same_run_is_training", run=name, trainer=trainer)
    if facts.status == "finished":
        return phrase("notebook.same_run_is_finished", run=name)
    steps = facts.summary.get("steps")
    so_far = phrase("notebook.steps_already_done", steps=steps) if isinstance(steps, int) else ""
    return phrase("notebook.run_will_resume", run=name, so_far=so_far)


def _copies(config: DeploymentConfig) -> str:
    if not config.enable_backups or config.backup.place is None:
        return phrase("notebook.checkpoints_not_backed_up")
    return phrase("notebook.checkpoints_backed_up_to", place=config.backup.place)


def _purpose_in(path: Path) -> Mapping[str, object] | None:
    try:
        return result_settings(RunDirectory(path).read_configuration())
    except (ValueError, OSError):  # damaged, unreadable, or not written by a run
        return None
