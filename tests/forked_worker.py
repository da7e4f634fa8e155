"""A worker of pytest-xdist that has imported what tests need, as a fork of one Python that has.

forked_worker.py NAME -u -c PROGRAM

Each worker would import PyTorch, Transformers and the project anew, for ten seconds of a core.
`conftest.py` names this in place of the Python that xdist starts. Input and output are the fork's.
"""

import functools
import signal
import sys

from tests import forks


def main() -> int:
    """Have the server called NAME fork the worker, and end as that does."""
    _, name, *_, program = sys.argv
    forks.share_server(name)
    worker = forks.Forked(functools.partial(forks.run_program, program), ("-c",))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker's answer to it counts
    return worker.wait()


if __name__ == "__main__":
    sys.exit(main())
