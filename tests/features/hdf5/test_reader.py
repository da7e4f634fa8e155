"""Refuse a file that is no table of one value per row and column, before it is read."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from infrastructure.data.readers.row_limits import MAX_ROW_BYTES
from infrastructure.data.readers.rows import Row
from infrastructure.features.hdf5.reader import HDF5

REFUSED: list[tuple[Callable[[h5py.File], object], str]] = [
    (
        lambda file: file.create_dataset("text", (5,), f"S{MAX_ROW_BYTES + 1}"),
        r"field_too_large.*column=text",
    ),
    (
        lambda file: file.create_dataset("text", (5,), "S2", external=[("secret", 0, 10)]),
        r"column_external.*column=text",
    ),
    (lambda file: file.update({"text": h5py.SoftLink("/nowhere")}), "without_columns"),
    (lambda file: file.update({"a": np.zeros(2), "b": np.zeros(3)}), "column_lengths_differ"),
    (
        lambda file: file.update({"a": np.zeros((2, 2))}),
        r"column_not_flat.*column=a.*num_dimensions=2",
    ),
]


@pytest.mark.parametrize(("fill", "refusal"), REFUSED)
def test_a_file_that_is_no_table_lies_elsewhere_or_is_too_wide_is_refused(
    tmp_path: Path, fill: Callable[[h5py.File], object], refusal: str
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        fill(file)
    with pytest.raises(ValueError, match=rf"hdf5\.{refusal}"):
        list(HDF5(tmp_path / "a.h5", "a.h5"))


def test_numbers_are_plain(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["n"] = np.arange(600)
    found = [row.values["n"] for row in HDF5(tmp_path / "a.h5", "a.h5") if isinstance(row, Row)]
    assert found == list(range(600))
    assert type(found[0]) is int
