"""G1 in its long form: `python -m tests.faults.kills` prints one JSON line.

`transformers` is the same storm on its Trainer, for comparison; nothing is demanded of it. The one
on its Trainer with TemperCallback counts as ours.
"""

import tempfile

from tests.faults.judge import Figures, print_figures, run_module
from tests.faults.kill_storm import MUTANTS
from tests.faults.kill_storm_bridge import MUTANTS as BRIDGE_MUTANTS

NUM_KILLS, NUM_MUTANT_KILLS, NUM_TRANSFORMERS_KILLS = 120, 15, 60
NUM_BRIDGE_KILLS, NUM_BRIDGE_MUTANT_KILLS = 40, 20


def storm(*arguments: str, module: str = "kill_storm") -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        return run_module(f"tests.faults.{module}", directory, *arguments)


def bridge_storm(*arguments: str) -> Figures:
    return storm(*arguments, module="kill_storm_bridge")


def main() -> None:
    outcome = storm("--kills", str(NUM_KILLS))
    for name, count in storm("--kills", str(NUM_KILLS), "--in-background").items():
        outcome[name] += count
    for name, count in bridge_storm("--kills", str(NUM_BRIDGE_KILLS)).items():
        outcome[name] += count
    found = [storm("--kills", str(NUM_MUTANT_KILLS), "--mutant", name) for name in MUTANTS]
    few = str(NUM_BRIDGE_MUTANT_KILLS)
    found += [bridge_storm("--kills", few, "--mutant", name) for name in BRIDGE_MUTANTS]
    caught = sum(bool(o["lost"] + o["damaged"] + o["differing"] + o["failed"]) for o in found)
    with tempfile.TemporaryDirectory() as directory:
        kills = ("--kills", str(NUM_TRANSFORMERS_KILLS))
        beside = run_module("tests.faults.kill_storm_transformers", directory, *kills)
    mutants = {"mutants": len(found), "mutants_caught": caught}
    print_figures("G1", {**outcome, **mutants, "transformers": beside})


if __name__ == "__main__":
    main()
