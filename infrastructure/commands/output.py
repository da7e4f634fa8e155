"""The output of commands: lines of text, or with `--json` one object on standard output."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from infrastructure.core.console import Report, show_beside
from infrastructure.core.console import show as show_line
from infrastructure.core.importing import importing


def show(as_json: bool, facts: Mapping[str, object], *lines: str) -> None:
    """Print the result of a command: `facts` as JSON, or `lines` as text."""
    print(json.dumps(facts, ensure_ascii=False) if as_json else "\n".join(lines))


@contextmanager
def loading_torch(as_json: bool = False) -> Iterator[None]:
    """Show a message while PyTorch is imported inside the block, which takes seconds.

    Args:
        as_json: if True, show nothing, because the output must be only a JSON object.
    """
    if as_json:
        with importing():
            yield
        return
    report = Report()
    report("Loading PyTorch")
    with report.waiting("still loading"), importing():
        yield


def progress(as_json: bool, line: str) -> None:
    """Print a line of progress. If the result will be printed as JSON, use standard error."""
    (show_beside if as_json else show_line)(line)
