"""Every shape of `file_shapes` is recognised as the table says, or refused with the way on."""

from pathlib import Path

import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.data.preparation.plan import understand
from infrastructure.data.readers.rows import BadRow, Conversation
from infrastructure.data.readers.sources import discover
from tests.data.file_shapes import FILE_SHAPES, Shape, write

LONGEST_SENTENCE = 300


def learnt(path: Path, shape: Shape) -> tuple[tuple[str, str, str] | None, int, str]:
    """What is learnt of the first row, of how many, and what is sentences."""
    config = DataConfig(path=str(path), **shape.settings)
    try:
        files = discover(str(path))
        schema, notes = understand(files, config)
    except ValueError as error:
        return None, 0, str(error).replace(str(path.parent), "")
    items = [schema.convert(r) if not isinstance(r, BadRow) else r for f in files for r in f.rows()]
    good = [item for item in items if isinstance(item, Conversation)]
    if not good:
        return None, 0, "; ".join(map(str, items))
    question = good[0].prompt[-1].text if good[0].prompt else ""
    sentences = [
        schema.reason,
        *notes,
        *(f.note for f in files),
        *(str(i) for i in items if isinstance(i, BadRow)),
    ]
    return (schema.name, question, good[0].answer.text), len(good), "\n".join(sentences)


@pytest.mark.parametrize("shape", FILE_SHAPES, ids=lambda shape: shape.name)
def test_a_file_is_recognised_or_refused_with_the_way_on(shape: Shape, tmp_path: Path) -> None:
    if shape.file.endswith(".xlsx"):
        pytest.importorskip("openpyxl")
    given, num_rows, sentences = learnt(write(shape, tmp_path), shape)
    assert given == shape.gives, sentences
    assert num_rows == (shape.num_rows if shape.gives else 0)
    assert shape.words in sentences
    assert all(len(sentence) <= LONGEST_SENTENCE for sentence in sentences.split("\n"))
