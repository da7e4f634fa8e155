"""A configuration as a training takes it: every door asks here, so that all of them take the same.

Loads no torch.
"""

from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.registries import REGISTERED_MODELS
from infrastructure.core.hub import (
    NotOnHubError,
    cached_file,
    hub_file,
    json_of,
    reads_like_path,
)
from infrastructure.core.json_text import JsonObject
from infrastructure.monitoring.records.run_list import finished_model
from infrastructure.training.data.samples import use_sample_data

BY_POSITIONS = "by the model's positions"  # where a shorter length came from


def make_ready(config: DeploymentConfig) -> None:
    """Give the sample data to a training that names none, shorten examples to what the model sees
    where nobody has given a length, have names mean what they meant where its run began, then
    refuse what cannot be carried out; a second call changes nothing.

    Raises:
        ConfigurationError: a sentence for each setting that cannot be carried out.
    """
    use_sample_data(config)
    _fit_length(config, may_fetch=True)
    config.adopt_plugins()
    config.check_supported()


def problems_of(config: DeploymentConfig) -> list[str]:
    """The sentences that `make_ready` would raise; leaves the configuration as it is, and asks
    nothing of the hub."""
    ready = config.changed([])
    use_sample_data(ready)
    _fit_length(ready, may_fetch=False)
    return ready.problems()


def _fit_length(config: DeploymentConfig, *, may_fetch: bool) -> None:
    """A length of examples that nobody has given is at most what the model has positions for."""
    if config.source("data.max_length").layer not in (Layer.DEFAULT, Layer.PRESET):
        return
    positions = num_positions(config, may_fetch=may_fetch)
    if positions is None or positions >= config.data.max_length:
        return
    config.note(
        f"data.max_length is {positions} instead of {config.data.max_length}: the model has no more"
        " positions"
    )
    config.data.max_length = positions
    config.came_from("data.max_length", BY_POSITIONS)


def num_positions(config: DeploymentConfig, *, may_fetch: bool) -> int | None:
    """Tokens that the model can see; None where it does not say it, or cannot be had.

    Args:
        may_fetch: the configuration of a hub model is brought here, if the cache has none.
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
    """A file of a saved model, or of a run's."""
    return json_of(folder / name) or json_of(folder / "final" / name)


def _on_hub(name: str, revision: str | None, may_fetch: bool) -> JsonObject:
    """The configuration of a hub model, where it lies in the cache or can be fetched."""
    if name in REGISTERED_MODELS or reads_like_path(name):
        return {}
    find = hub_file if may_fetch else cached_file
    try:
        return json_of(find(name, "config.json", revision))
    except NotOnHubError:  # which is told where model and data are looked at
        return {}
