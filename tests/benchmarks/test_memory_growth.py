"""The peaks of a short training, and the page that judges them."""

from pathlib import Path

from benchmarks.memory_growth import measure


def test_peaks_of_a_short_training(tmp_path: Path) -> None:
    peaks = measure((2, 4), "bf16", tmp_path)
    assert sorted(peaks.peaks) == [2, 4]
    assert 100e6 < peaks.peaks[2] < peaks.peaks[4] + 1e6  # the kernel counts in batches
    assert len(peaks.lengths) == 4  # each step has a shape of its own
