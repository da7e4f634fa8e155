"""The storm on Trainers that people write, in its short form: `make storm-callback` has the long
one, with TRL's Trainers and the mutants."""

from tests.faults.judge import run_in_fork
from tests.faults.kill_storm_own_trainers import MODULE
from tests.slow import slow


@slow  # tests/field/test_own_trainers.py has kills and another machine, each by itself
def test_a_best_lora_survives_kills_and_another_machine() -> None:
    outcome = run_in_fork(MODULE, "--kills", "2", "--kind", "adapter")
    assert (outcome["differing"], outcome["failed"]) == (0, 0), outcome
    assert outcome["finished"] >= 1
    assert outcome["kills"] >= 2
    assert outcome["moved"] >= 1
