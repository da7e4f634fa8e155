"""What goes together is known without torch; each refusal is a row of the table of wrong inputs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.training.methods.check import NOT_HERE, check_method
from infrastructure.training.methods.method_table import installed_method
from tests.training.methods.method_runs import configuration, methods_here

PROBE = """
import sys
from infrastructure.training.methods import check, method_data, rewards, settings_table
sys.exit(sum(name in sys.modules for name in ("torch", "trl", "transformers", "datasets")))
"""


def test_nothing_heavy_is_imported() -> None:
    subprocess.run([sys.executable, "-c", PROBE], check=True, timeout=120)


@pytest.mark.parametrize("method", methods_here())
def test_what_goes_together_is_let_pass(tmp_path: Path, saved_llama: Path, method: str) -> None:
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    (teacher / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 300}))
    check_method(configuration(method, tmp_path, saved_llama, teacher))


def test_the_own_loop_is_not_looked_at() -> None:
    check_method(DeploymentConfig(data_path="nowhere.jsonl"))


def test_a_data_set_of_the_hub_is_looked_at_when_it_is_there(saved_llama: Path) -> None:
    check_method(
        DeploymentConfig(
            data_path="nobody/nothing", model_name=str(saved_llama), training={"method": "dpo"}
        )
    )


def test_what_is_not_taken_is_there_in_trl() -> None:
    """A name that TRL has dropped would be refused for a reason that is none."""
    here = methods_here()
    known = {name for method in here for name in installed_method(method).own_arguments()}
    of_teachers = {name for name in NOT_HERE if "distillation" not in here and "teacher" in name}
    assert set(NOT_HERE) - known - of_teachers == set()
