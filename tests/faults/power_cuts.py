"""G2 in its long form: `python -m tests.faults.power_cuts` prints one JSON line."""

from tests.faults.judge import print_figures
from tests.faults.memory_files import MemoryFiles
from tests.faults.test_power_loss import NoDirectorySync, NoFileSync, history_of, lost_states

NUM_SAVES = 8


def main() -> None:
    files = MemoryFiles()
    states, lost = lost_states(files, history_of(files), NUM_SAVES)
    mutants = [kind() for kind in (NoFileSync, NoDirectorySync)]
    caught = sum(lost_states(mutant, history_of(mutant))[1] > 0 for mutant in mutants)
    print_figures(
        "G2", {"states": states, "lost": lost, "mutants": len(mutants), "mutants_caught": caught}
    )


if __name__ == "__main__":
    main()
