"""The curves as pictures in files."""

import math
from pathlib import Path

from PIL import Image

from infrastructure.monitoring.drawing.curves import PointsByKey
from infrastructure.monitoring.drawing.plots import write_plots
from tests.monitoring.written_run import evaluation, falling, points_by_key, step_record


def points() -> PointsByKey:
    return points_by_key([*falling(1, 40), evaluation(20, 1.5), evaluation(40, 1.25)])


def test_each_quantity_is_a_picture(tmp_path: Path) -> None:
    written = write_plots(points(), tmp_path / "plots")
    names = ["loss", "learning_rate", "grad_norm", "tokens_per_second", "memory_bytes"]
    assert [path.name for path in written] == [f"{name}.png" for name in names]
    for path in written:
        with Image.open(path) as picture:
            assert picture.size == (1152, 576)
            assert len(picture.convert("L").getcolors(256) or []) > 20  # something is drawn


def test_held_out_losses_and_what_is_not_finite_change_the_picture(tmp_path: Path) -> None:
    records = [*falling(1, 40), step_record(41, math.nan), step_record(42, 0.4)]
    plain, marked = write_plots(points_by_key(records), tmp_path / "a"), points_by_key(records)
    marked["eval_loss"] = [(20, 1.5), (40, math.inf)]
    other = write_plots(marked, tmp_path / "b")
    assert plain[0].read_bytes() != other[0].read_bytes()
    assert plain[1].read_bytes() == other[1].read_bytes()


def test_without_numbers_there_are_no_pictures(tmp_path: Path) -> None:
    assert write_plots({}, tmp_path) == []
    assert list(tmp_path.iterdir()) == []
