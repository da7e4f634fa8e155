"""G1 in its long form: `python -m tests.faults.kills` prints one JSON line.

`transformers` is the same storm on its Trainer, for comparison; nothing is demanded of it.
"""

import tempfile

from tests.faults.judge import Figures, run_module, tell
from tests.faults.kill_storm import MUTANTS

NUM_KILLS, NUM_MUTANT_KILLS, NUM_TRANSFORMERS_KILLS = 200, 15, 60


def storm(*arguments: str) -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        return run_module("tests.faults.kill_storm", directory, *arguments)


def main() -> None:
    outcome = storm("--kills", str(NUM_KILLS))
    for name, count in storm("--kills", str(NUM_KILLS), "--in-background").items():
        outcome[name] += count
    found = [storm("--kills", str(NUM_MUTANT_KILLS), "--mutant", name) for name in MUTANTS]
    caught = sum(bool(o["lost"] + o["damaged"] + o["differing"] + o["failed"]) for o in found)
    with tempfile.TemporaryDirectory() as directory:
        kills = ("--kills", str(NUM_TRANSFORMERS_KILLS))
        beside = run_module("tests.faults.kill_storm_transformers", directory, *kills)
    mutants = {"mutants": len(found), "mutants_caught": caught}
    tell("G1", {**outcome, **mutants, "transformers": beside})


if __name__ == "__main__":
    main()
