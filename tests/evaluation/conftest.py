"""A run that models of the tests lie in."""

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose data was read with rules of its own."""
    saved = DeploymentConfig(data={"max_length": 77, "train_on": "all"}).to_dict()
    (tmp_path / "run" / "final").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text(json.dumps({"configuration": saved}))
    return tmp_path / "run"


def config_for(model: Path, **data: Any) -> DeploymentConfig:
    return DeploymentConfig(model={"name": str(model)}, data=data)
