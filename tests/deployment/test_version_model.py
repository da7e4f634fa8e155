"""Which names a training takes for versions of runs."""

from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.version_model import use_versions


def test_a_name_that_is_of_no_version_stays_as_it_is(tmp_path: Path) -> None:
    """A folder of that name in the output folder is not what was named."""
    for name in ("tiny/student", "tiny/teacher"):
        (tmp_path / name).mkdir(parents=True)
    config = DeploymentConfig(
        output_dir=str(tmp_path),
        **{"model.name": "tiny/student", "training.teacher": "tiny/teacher"},
    )
    use_versions(config)
    assert (config.model.name, config.training.teacher) == ("tiny/student", "tiny/teacher")
