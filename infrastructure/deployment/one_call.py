"""Functions that train, resume and evaluate in one call, as the commands do."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from infrastructure.backup.run_backup import place_options
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer, Source, flatten
from infrastructure.config.merging.presets import PRESET
from infrastructure.config.process_wide import take_effect
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import key_of_keyword
from infrastructure.config.sources.load import load_config
from infrastructure.config.sources.spelling import as_keyword, speaking
from infrastructure.core.console import ShowLine, show, show_beside, waiting_beside
from infrastructure.core.messages import phrase
from infrastructure.core.stop_signals import interrupt_on_signals
from infrastructure.data.defaults import make_ready
from infrastructure.deployment.deploy_training import TrainingDeployment
from infrastructure.deployment.given_paths import check_given, check_measured, check_model
from infrastructure.deployment.model_repair import repair_finished, repair_model
from infrastructure.deployment.resuming import RunToResume, find_to_resume
from infrastructure.deployment.version_model import named_model, use_versions
from infrastructure.evaluation.evaluate import Evaluation, measure_model, measured_answers
from infrastructure.evaluation.request import Request, refuse_flags_without_effect
from infrastructure.run.record_types import Summary
from infrastructure.training.distributed.members import others_dismissed


def train(
    data: str | Path | Mapping[str, Any] | None = None,
    model: str | Path | Mapping[str, Any] | None = None,
    *,
    preset: str | None = None,
    config_file: str | Path | None = None,
    accept: Collection[str] = (),
    **settings: Any,
) -> Summary:
    """Train, or resume the newest unfinished run with the same settings.

        summary = temper.train("chats.jsonl", model="./my-llama", lora=True, num_epochs=3)

    Args:
        data: a file, a folder or a Hub dataset, or all settings of the section `data` as a mapping;
            by default, the sample tasks.
        model: a folder or a Hub name, or all settings of the section `model` as a mapping; by
            default, a small model from scratch.
        preset: a predefined group of settings; `temper train --help-all` lists them.
        config_file: a YAML file; by default, `.config/training_config.yaml` if it exists.
        accept: the names of settings that may differ when a run resumes, such as
            `["learning_rate"]`.
        settings: settings by the names of the flags (`max_steps`, `lora`, `backup_place`), or as
            for `DeploymentConfig`. They take precedence over the file and the environment.

    Returns:
        The content of the run's summary.json: `status`, `before`, `after`, `paths` and more.

    Raises:
        ValueError, TemperError: if the run cannot start with this configuration; nothing was
            trained.
    """
    named = _named("data.path", data) | _named("model.name", model) | _named(PRESET, preset)
    with speaking(as_keyword):
        config = load_config(config_file, keywords=named | _by_key(settings))
        take_effect(config)
        use_versions(config)
        make_ready(config)
        check_given(config, accept)
        return train_configured(config, accept)


def _named(key: str, value: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a setting as a keyword argument. If `value` is a mapping, return a whole section."""
    if value is None:
        return {}
    return {key.split(".")[0]: value} if isinstance(value, Mapping) else {key: str(value)}


def _by_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their full key: `data="rows.jsonl"` becomes the key `data.path`."""
    named = {key_of_keyword(name): value for name, value in settings.items()}
    return named | _named("data.path", named.pop("data", None))


def train_configured(
    config: DeploymentConfig, accept: Collection[str] = (), show_line: ShowLine = show
) -> Summary:
    """Train with a complete configuration; see `train`. `show_line` shows a line to the user."""
    with interrupt_on_signals(), others_dismissed():
        return TrainingDeployment(config, show_line, accept).run()


def resume(
    run: str | Path | None = None,
    *,
    output_dir: str | Path = "runs",
    accept: Collection[str] = (),
    **changes: Any,
) -> Summary:
    """Resume a run with its recorded settings. If it is finished, only complete its backup.

    Args:
        run: the name of the run, `name@step`, or its path; by default, the newest run. A run that
            is not on this machine is restored from `backup_place`.
        output_dir: the folder of the runs.
        accept: the names of settings that may differ, such as `["learning_rate"]`.
        changes: settings that differ from now on, as in `train`.

    Returns:
        The content of the run's summary.json, as for `train`.

    Raises:
        ValueError, TemperError: if there is no such run, or it cannot resume with these settings.
    """
    schema = schema_of(DeploymentConfig)
    name = None if run is None else str(run)
    with speaking(as_keyword):
        named = _by_key(changes)
        given = [*flatten(named, schema, lambda key: Source(Layer.KEYWORD, f"keyword {key}"))]
        place = next((each for each in given if each.key == "backup.place" and each.value), None)
        chosen = find_to_resume(name, str(output_dir), given, accept, show, place)
        return resume_run(chosen, accept)


def resume_run(
    chosen: RunToResume, accept: Collection[str] = (), show_line: ShowLine = show
) -> Summary:
    """Resume the run that `find_to_resume` returned."""
    run, checkpoint, config = chosen
    take_effect(config)
    if config.backup.place is None and "backup.place" in run.masked():
        show_line(phrase("deployment.backup_password_not_recorded"))
    deployment = TrainingDeployment(config, show_line, accept)
    is_over = checkpoint is None and not accept and run.is_finished()
    if is_over:
        repair_finished(run, place_options(config), show_line)
    with interrupt_on_signals(), others_dismissed():
        if is_over and run.is_finished():
            show_line(phrase("deployment.resumed_run_finished", run_id=run.run_id, path=run.final))
            return deployment.complete(run)
        return deployment.resume(run, checkpoint)


def evaluate(
    model: str | Path,
    data: str | Path,
    *,
    against: str | Path | None = None,
    measures: Collection[str] | None = None,
    max_tokens: int | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate a trained model on data.

        temper.evaluate("runs/my-run", "questions.jsonl").metrics["eval_loss"]

    Args:
        model: a run, its `final/`, or any model folder. A run can be given by its ID, its name or
            its path, as on the command line.
        data: a file, a folder or a Hub dataset.
        against: a second model to measure on the same rows and compare with.
        measures: the measures of the answers, such as `["exact_match", "f1"]`; by default, those
            that fit the data.
        max_tokens: the maximum length of an answer in tokens; by default, a few more than the
            longest expected one.
        settings: settings, as in `train`.

    Returns:
        The loss, the path of the HTML page, and for each task the share of correct answers and
        other scores with their confidence intervals.

    Raises:
        ValueError, TemperError: if a model or the data cannot be used.
    """
    named = {"model.name": str(model), "data.path": str(data)}
    with speaking(as_keyword):
        config = load_config(keywords=named | _by_key(settings))
        take_effect(config)
        output_dir = Path(config.output_dir)
        config.model.name = named_model(config.model.name, output_dir)
        other = None if against is None else named_model(str(against), output_dir)
        refuse_flags_without_effect(config)
        request = Request(other, None if measures is None else tuple(measures), max_tokens)
        check_measured(config, other)
        evaluation, _ = evaluate_configured(config, request)
    for note in evaluation.notes:
        show_beside(f"note: {note}")
    return evaluation


def evaluate_configured(
    config: DeploymentConfig, request: Request | None = None
) -> tuple[Evaluation, list[str]]:
    """Evaluate the model that `config` names; see `evaluate`. Also return the lines to show."""
    models = [config.model.name, *([request.against] if request and request.against else [])]
    for name in models:
        check_model(name)
        repair_model(Path(name))
    count = measured_answers()
    with interrupt_on_signals(), waiting_beside(count.words):
        return measure_model(config, request, count)
