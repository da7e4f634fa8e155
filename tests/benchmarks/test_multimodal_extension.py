"""The short form of the benchmark: the picture decides what is answered, nothing else does."""

from pathlib import Path

from benchmarks.multimodal_extension import CHANCE, measure
from tests.slow import slow

LEAST_GAIN = 0.3


@slow
def test_a_model_of_text_sees_by_its_tower_alone(tmp_path: Path) -> None:
    shares = measure(tmp_path / "rows", 0, rows=400, epochs=8)
    assert shares.num_parameters[0] == shares.num_parameters[1]
    assert shares.seeing > shares.blank + LEAST_GAIN
    assert shares.seeing > shares.exchanged + LEAST_GAIN
    assert shares.blank < CHANCE + LEAST_GAIN / 2
    assert shares.exchanged < CHANCE + LEAST_GAIN / 2
