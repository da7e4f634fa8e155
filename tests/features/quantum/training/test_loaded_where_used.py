"""What only samplers need is loaded where a training has a quantum step, and nowhere else."""

import json
import sys
from pathlib import Path

from tests.deployment.runs import small_settings
from tests.forks import outcome_of_forked

# The parent of the fork may have imported the tests, and with them everything.
PROGRAM = """
import sys
OURS = ("infrastructure", "temper", "dimod")
for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
    del sys.modules[name]
from infrastructure.commands.main import main
for name in sys.argv[1:]:
    code = main(["train", "--config", name])
    print(f"ended with {code}; dimod: {'dimod' in sys.modules}")
"""


def test_dimod_is_loaded_with_the_quantum_step_alone(tmp_path: Path) -> None:
    """Whole runs of the command, with checkpoints, monitor, evaluation and report."""
    for name, extensions in (("without", []), ("with", ["quantum"])):
        made = small_settings(tmp_path, max_steps=2, enabled_extensions=extensions)
        (tmp_path / name).with_suffix(".yaml").write_text(json.dumps(made))
    command = [sys.executable, "-c", PROGRAM, "without.yaml", "with.yaml"]
    done = outcome_of_forked(command, text=True, cwd=tmp_path)
    ends = [line for line in done.stdout.splitlines() if line.startswith("ended with")]
    assert ends == [f"ended with 0; dimod: {loads}" for loads in (False, True)], done.stderr
