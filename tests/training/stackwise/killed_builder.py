"""Builds caches in forked children, one for each line of its input, until somebody kills the child.
Torch is imported once.

A line is a folder and a number of bytes: the kernel kills a child in the middle of the write that
makes a file longer. 0 is no limit.
"""

import os
import resource
import signal
import sys
import time
from pathlib import Path

from infrastructure.training.stackwise.activation_cache import ActivationCache, Pages, trunk_hash
from tests.training.stackwise.trunks import Trunk, examples

WIDE = 512
ROWS = examples(160, longest=64)


def cache_in(folder: Path) -> tuple[ActivationCache, Trunk, Pages]:
    """The cache that children build; pages of about 130 KB, as many as a child can be killed in."""
    trunk, pages = Trunk(hidden_size=WIDE), Pages(ROWS, 2)
    key = {"trunk_hash": trunk_hash(trunk.state_dict().items())}
    return ActivationCache(folder, key, pages, hidden_size=WIDE), trunk, pages


def die_when_a_file_is_longer(limit_bytes: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            folder, limit_bytes = line.rsplit(maxsplit=1)
            print("begun", os.getpid(), flush=True)
            if int(limit_bytes):
                die_when_a_file_is_longer(int(limit_bytes))
            cache, trunk, _ = cache_in(Path(folder))
            # who kills it counts the pages
            cache.build(trunk, lambda done, total: time.sleep(0.002))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print("ended", os.WIFSIGNALED(status), flush=True)


if __name__ == "__main__":
    main()
