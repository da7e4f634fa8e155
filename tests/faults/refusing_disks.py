"""G3 in its long form: `python -m tests.faults.refusing_disks` prints one JSON line."""

import errno

from tests.faults.failing_files import ERRORS, FailingFiles
from tests.faults.judge import print_figures
from tests.faults.store_history import next_save_works, step_that_loads
from tests.faults.test_failing_disk import TWO_VERSIONS, error_of


def main() -> None:
    counting = FailingFiles(TWO_VERSIONS)
    assert error_of(counting) is None
    trials = lost = stuck = 0
    for error in ERRORS:
        for stays in (False, True):
            for fail_at in range(counting.count):
                failing = FailingFiles(TWO_VERSIONS, error, fail_at, stays)
                error_of(failing)
                failing.heal()
                trials += 1
                lost += step_that_loads(failing) < 2
                stuck += not next_save_works(failing)
    names = [errno.errorcode[number] for number in ERRORS]
    print_figures(
        "G3", {"errors": names, "trials": trials, "lost": lost, "next_save_failed": stuck}
    )


if __name__ == "__main__":
    main()
