"""Builds caches in forked children, one for each line of its input: a folder, which it is told is
begun, until somebody kills the child. Torch is imported once."""

import os
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


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            cache, trunk, _ = cache_in(Path(line.strip()))
            print("begun", os.getpid(), flush=True)
            # who kills it counts the pages
            cache.build(trunk, lambda done, total: time.sleep(0.002))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print("ended", os.WIFSIGNALED(status), flush=True)


if __name__ == "__main__":
    main()
