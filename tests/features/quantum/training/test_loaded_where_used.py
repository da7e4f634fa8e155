"""What only samplers need is loaded where a training has a quantum step, and nowhere else."""

import json
import sys
from pathlib import Path

import pytest

from tests.deployment.runs import small_settings
from tests.forks import outcome_of_forked

# The parent of the fork may have imported the tests, and with them everything.
PROGRAM = """
import sys
OURS = ("infrastructure", "temper", "dimod")
for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
    del sys.modules[name]
from infrastructure.commands.main import main
code = main(["train", "--config", "c.yaml"])
print(f"ended with {code}; dimod: {'dimod' in sys.modules}")
"""


@pytest.mark.parametrize(
    ("extensions", "loads"), [([], False), (["quantum"], True)], ids=["without", "with"]
)
def test_dimod_is_loaded_with_the_quantum_step_alone(
    extensions: list[str], loads: bool, tmp_path: Path
) -> None:
    """A whole run of the command, with checkpoints, monitor, evaluation and report."""
    made = small_settings(tmp_path, max_steps=2, enabled_extensions=extensions)
    (tmp_path / "c.yaml").write_text(json.dumps(made))
    done = outcome_of_forked([sys.executable, "-c", PROGRAM], text=True, cwd=tmp_path)
    assert f"ended with 0; dimod: {loads}\n" in done.stdout, done.stdout + done.stderr
