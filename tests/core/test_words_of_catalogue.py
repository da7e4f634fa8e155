"""All words of the catalogue, as a command line reads them: the only test that looks at words.

After a change of words: `python -m tests.core.test_words_of_catalogue` writes the file anew.
"""

import os
import string
import tomllib
from collections.abc import Iterator
from pathlib import Path

from infrastructure.config.sources.flags import as_flag
from infrastructure.core.messages import WORDS, catalogue_files, phrase, spelled_by

GOLDEN = Path(__file__).with_name("words.txt")


def codes() -> Iterator[tuple[str, str]]:
    for topic, path in sorted(catalogue_files().items()):
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            yield f"{topic}.{name}", " ".join(entry.values())


def sample_of(words: str) -> dict[str, object]:
    """A value for each placeholder: 2 where a number is formatted, else its name."""
    about: dict[str, object] = {}
    for _, name, spec, _ in string.Formatter().parse(words):
        if name is not None and not name.startswith("="):
            about[name] = 2 if spec else about.get(name, f"<{name}>")
        about = sample_of(spec or "") | about
    return about


def rendered() -> str:
    with spelled_by(as_flag):
        return "".join(f"{code}\n    {phrase(code, **sample_of(w))}\n" for code, w in codes())


def test_the_words_are_those_of_the_file() -> None:
    shown = os.environ.pop(WORDS)
    try:
        assert rendered() == GOLDEN.read_text(encoding="utf-8")
    finally:
        os.environ[WORDS] = shown


if __name__ == "__main__":
    GOLDEN.write_text(rendered(), encoding="utf-8")
