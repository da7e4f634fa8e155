"""A configuration as a training takes it: every door asks here, so that all of them take the same.

Loads no torch.
"""

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.training.data.samples import use_sample_data


def make_ready(config: DeploymentConfig) -> None:
    """Give the sample data to a training that names none, have names mean what they meant where its
    run began, then refuse what cannot be carried out; a second call changes nothing.

    Raises:
        ConfigurationError: a sentence for each setting that cannot be carried out.
    """
    use_sample_data(config)
    config.adopt_plugins()
    config.check_supported()


def problems_of(config: DeploymentConfig) -> list[str]:
    """The sentences that `make_ready` would raise; leaves the configuration as it is."""
    ready = config.changed([])
    use_sample_data(ready)
    return ready.problems()
