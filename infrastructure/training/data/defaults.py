"""A configuration as a training takes it: every door asks here, so that all of them take the same.

Loads no torch.
"""

from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.precedence import Layer
from infrastructure.core.json_text import JsonObject, as_object, parse_json
from infrastructure.monitoring.records.run_list import finished_model
from infrastructure.training.data.samples import use_sample_data


def make_ready(config: DeploymentConfig) -> None:
    """Give the sample data to a training that names none, shorten examples to what the model sees
    where nobody has given a length, have names mean what they meant where its run began, then
    refuse what cannot be carried out; a second call changes nothing.

    Raises:
        ConfigurationError: a sentence for each setting that cannot be carried out.
    """
    use_sample_data(config)
    _fit_length(config)
    config.adopt_plugins()
    config.check_supported()


def problems_of(config: DeploymentConfig) -> list[str]:
    """The sentences that `make_ready` would raise; leaves the configuration as it is."""
    ready = config.changed([])
    use_sample_data(ready)
    _fit_length(ready)
    return ready.problems()


def _fit_length(config: DeploymentConfig) -> None:
    """A length of examples that nobody has given is at most what the model has positions for."""
    if config.source("data.max_length").layer not in (Layer.DEFAULT, Layer.PRESET):
        return
    positions = _num_positions(config)
    if positions is None or positions >= config.data.max_length:
        return
    config.note(
        f"data.max_length is {positions} instead of {config.data.max_length}: the model has no more"
        " positions"
    )
    config.data.max_length = positions


def _num_positions(config: DeploymentConfig) -> int | None:
    """Tokens that the model can see; None where nothing here says it, as of a name on the hub."""
    if config.model.name == "embedded":
        return config.model.embedded.max_positions
    folder = Path(finished_model(config.model.name)).expanduser()
    values = _read(folder / "config.json") or _read(folder / "final" / "config.json")
    lora = _read(folder / "adapter_config.json") or _read(folder / "final" / "adapter_config.json")
    if lora and isinstance(base := lora.get("base_model_name_or_path"), str):
        values = _read(Path(base) / "config.json")
    text = values.get("text_config")
    inside = text if isinstance(text, dict) else values
    positions = inside.get("max_position_embeddings")
    return positions if isinstance(positions, int) and positions > 1 else None


def _read(file: Path) -> JsonObject:
    """What is wrong with it is told where the model is loaded."""
    try:
        return as_object(parse_json(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}
