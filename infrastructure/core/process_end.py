"""The end of a process that has loaded much: at once, with nothing lost."""

import gc
import io
from contextlib import suppress

BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def leave_the_rest() -> None:
    """Leave what is loaded to the operating system, as the last thing before the exit.

    Python takes half a million objects of PyTorch and its like apart one by one, which takes two to
    four seconds after the last line is shown. Exit handlers and threads end as ever; what somebody
    has written to a file that nobody closed is flushed here, because nobody does it later.
    """
    for each in gc.get_objects():
        if issubclass(type(each), BUFFERED):  # isinstance would ask an object that stands in
            with suppress(OSError, ValueError):  # closed, detached, or nobody reads
                each.flush()
    gc.freeze()
