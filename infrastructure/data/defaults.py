"""Completion of a configuration before a run, used by every entry point.

Loads no torch.
"""

from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.methods import method_named
from infrastructure.config.registries import REGISTERED_MODELS
from infrastructure.core.features import models_of_features
from infrastructure.core.hub import (
    NotOnHubError,
    cached_file,
    hub_file,
    reads_like_path,
)
from infrastructure.core.json_text import JsonObject, json_of
from infrastructure.core.messages import phrase
from infrastructure.data.samples import use_sample_data
from infrastructure.monitoring.records.run_list import finished_model, model_of_run


def make_ready(config: DeploymentConfig) -> None:
    """Fill in what a configuration leaves open, and reject settings that cannot be applied.

    If no data is configured, the sample data is used. If the model setting names a run, it is
    replaced by the path of that run's model. Lengths that the user did not set are limited to what
    the model supports. In a resumed run, plug-in names keep the meaning that they had when the run
    began. A second call changes nothing.

    Raises:
        ConfigurationError: settings cannot be applied; the message has a sentence for each.
    """
    use_sample_data(config)
    _find_models_of_runs(config)
    fit_lengths(config, may_fetch=True)
    config.adopt_plugins()
    config.check_supported()


def problems_of(config: DeploymentConfig) -> list[str]:
    """Return the problems that `make_ready` would report, as sentences.

    The configuration is not changed, and the Hub is not contacted.
    """
    ready = config.changed([])
    use_sample_data(ready)
    _find_models_of_runs(ready)
    fit_lengths(ready, may_fetch=False)
    return ready.problems()


def _find_models_of_runs(config: DeploymentConfig) -> None:
    output_dir, name = Path(config.output_dir), config.model.name
    config.model.name = model_of_run(name, output_dir)
    if Path(name).name not in Path(config.model.name).parts:
        config.note(phrase("data.model_is_run", name=name, path=config.model.name))
    for key in models_of_features():
        if (given := config.value(key)) is not None:
            config.assign(key, model_of_run(given, output_dir))


def fit_lengths(config: DeploymentConfig, *, may_fetch: bool) -> None:
    """Limit the lengths that the user did not set to what the model supports.

    The maximum length of examples is limited to the model's context length. If answers that are
    generated in training could be as long as an example, their length is limited to half of it, so
    that the prompt has room.

    Args:
        may_fetch: download the configuration of a Hub model if it is not in the cache.
    """
    _fit_examples(config, may_fetch=may_fetch)
    _fit_answers(config)


def _fit_answers(config: DeploymentConfig) -> None:
    method = method_named(config.training.method)
    is_given = not _is_nobodys(config, "training.max_completion_length")
    if method is None or not method.generates or is_given:
        return
    longest = config.data.max_length
    if longest > config.training.max_completion_length:
        return
    half = max(1, longest // 2)
    config.note(
        phrase(
            "data.completion_length_lowered",
            half=half,
            max_completion_length=config.training.max_completion_length,
            longest=longest,
        )
    )
    config.training.max_completion_length = half
    config.came_from("training.max_completion_length", phrase("data.half_of_max_length"))


def _is_nobodys(config: DeploymentConfig, key: str) -> bool:
    return config.source(key).layer in (Layer.DEFAULT, Layer.PRESET)


def _fit_examples(config: DeploymentConfig, *, may_fetch: bool) -> None:
    if not _is_nobodys(config, "data.max_length"):
        return
    positions = num_positions(config, may_fetch=may_fetch)
    if positions is None or positions >= config.data.max_length:
        return
    config.note(
        phrase("data.max_length_lowered", positions=positions, max_length=config.data.max_length)
    )
    config.data.max_length = positions
    config.came_from("data.max_length", phrase("data.from_model_positions"))


def num_positions(config: DeploymentConfig, *, may_fetch: bool) -> int | None:
    """Return the model's context length in tokens; None if it is unknown or unavailable.

    Args:
        may_fetch: download the configuration of a Hub model if it is not in the cache.
    """
    if config.model.name == "embedded":
        return config.model.embedded.max_positions
    folder = Path(finished_model(config.model.name)).expanduser()
    if folder.exists():
        values = _in_folder(folder, "config.json")
        base = _in_folder(folder, "adapter_config.json").get("base_model_name_or_path")
        if isinstance(base, str):
            values = json_of(Path(base) / "config.json") or _on_hub(base, None, may_fetch)
    else:
        values = _on_hub(config.model.name, config.model.revision, may_fetch)
    text = values.get("text_config")
    inside = text if isinstance(text, dict) else values
    positions = inside.get("max_position_embeddings")
    return positions if isinstance(positions, int) and positions > 1 else None


def _in_folder(folder: Path, name: str) -> JsonObject:
    """Return the contents of a JSON file in a saved model's folder, or in a run's `final`
    folder.
    """
    return json_of(folder / name) or json_of(folder / "final" / name)


def _on_hub(name: str, revision: str | None, may_fetch: bool) -> JsonObject:
    """Return the configuration of a Hub model from the cache or the Hub; {} if it is
    unavailable.
    """
    if name in REGISTERED_MODELS or reads_like_path(name):
        return {}
    find = hub_file if may_fetch else cached_file
    try:
        return json_of(find(name, "config.json", revision))
    except NotOnHubError:  # reported when the model is loaded
        return {}
