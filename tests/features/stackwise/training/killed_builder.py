"""Builds caches in forked children, one for each line of its input, until somebody kills the child.
Torch is imported once.

A line is a folder and two numbers. One is of bytes: the kernel kills a child in the middle of the
write that makes a file longer. The other is of pages, after which a child waits to be killed. 0 is
no limit.
"""

import os
import resource
import signal
import sys
import time
from functools import partial
from pathlib import Path

from infrastructure.features.stackwise.training.activation_cache import (
    ActivationCache,
    Pages,
    trunk_hash,
)
from tests.features.stackwise.training.trunks import Trunk, examples

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


def wait(most_pages: int, done: int, total: int) -> None:
    """Who kills it counts the pages."""
    while done == most_pages:
        signal.pause()
    time.sleep(0.002)


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            folder, limit_bytes, most_pages = line.rsplit(maxsplit=2)
            print("begun", os.getpid(), flush=True)
            if int(limit_bytes):
                die_when_a_file_is_longer(int(limit_bytes))
            cache, trunk, _ = cache_in(Path(folder))
            cache.build(trunk, partial(wait, int(most_pages)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print("ended", os.WIFSIGNALED(status), flush=True)


if __name__ == "__main__":
    main()
