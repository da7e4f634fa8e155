"""G10 in its long form: `python -m tests.faults.stops` prints one JSON line."""

import tempfile

from tests.faults import signal_storm
from tests.faults.judge import Figures, print_figures, run_module
from tests.faults.stop_storm import MUTANTS

NUM_STOPS, NUM_MUTANT_STOPS = 100, 8
NUM_SEQUENCES, NUM_MUTANT_SEQUENCES = 12, 6  # of each kind of command


def storm(*arguments: str, module: str = "stop_storm") -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        return run_module(f"tests.faults.{module}", directory, *arguments)


def command_storm(*arguments: str) -> Figures:
    return storm(*arguments, module="signal_storm")


def main() -> None:
    loop = storm("--stops", str(NUM_STOPS))
    commands = command_storm("--sequences", str(NUM_SEQUENCES))
    counts = {
        name: count + loop.get(name, 0) for name, count in commands.items() if type(count) is int
    }
    found = [storm("--stops", str(NUM_MUTANT_STOPS), "--mutant", name) for name in MUTANTS]
    few = ("--kinds", "orpo", "--sequences", str(NUM_MUTANT_SEQUENCES))
    found += [command_storm(*few, "--mutant", name) for name in signal_storm.MUTANTS]
    bad = ("unsaved", "slow", "differing", "failed")
    caught = sum(any(one.get(name) for name in bad) for one in found)
    figures = {**loop, **commands, **counts, "mutants": len(found), "mutants_caught": caught}
    print_figures("G10", figures)


if __name__ == "__main__":
    main()
