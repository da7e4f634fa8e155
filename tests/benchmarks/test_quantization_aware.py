"""The page of rounded training says what its own tables give."""

import json
import re
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import quantization_aware
from benchmarks.quantization_aware import interval_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "quantization_aware.md"
ROW = re.compile(r"^\| (\d+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", re.MULTILINE)
SUMMARY = re.compile(
    r"Mean gain (\S+), 95 % interval (\S+) to (\S+): better in (\d+) of (\d+) seeds"
)
HALF_A_DIGIT = 0.0011  # two losses and a difference, rounded to three digits


def test_the_interval_is_students_t_over_the_seeds() -> None:
    gains = [1.0, 2.0, 3.0]
    assert interval_of(gains) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    with pytest.raises(KeyError):
        interval_of([1.0] * 11)  # of so many seeds t is not known


@pytest.mark.parametrize("kind", ["int4", "int8_int4"])
def test_the_page_agrees_with_its_table(kind: str) -> None:
    text = RESULTS.read_text("utf-8")
    section = text.partition(f"\n## {kind} ")[2].partition("\n## ")[0]
    rows = [[float(value) for value in row] for row in ROW.findall(section)]
    assert [row[0] for row in rows] == [*range(10)]
    for _, _, afterwards, aware, gain in rows:
        assert gain == pytest.approx(afterwards - aware, abs=HALF_A_DIGIT)
    gains = [row[-1] for row in rows]
    summary = SUMMARY.search(section)
    assert summary
    mean, low, high, better, seeds = (float(value) for value in summary.groups())
    expected = (statistics.fmean(gains), *interval_of(gains))
    assert (mean, low, high) == pytest.approx(expected, abs=HALF_A_DIGIT)
    assert (better, seeds) == (sum(gain > 0 for gain in gains), len(rows))


def test_another_kind_begins_from_the_starts_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[int] = []

    def trained(_model: object, seed: int, *_: Any) -> Any:
        begun.append(seed)
        return SimpleNamespace(adapter=SimpleNamespace(save=Path.mkdir))

    def losses(_kind: str, is_aware: bool, seed: int, _steps: int, start: Path) -> Any:
        assert start == tmp_path / f"start-800-{seed}"
        return 0.1, 0.2 + seed if is_aware else 0.5 + 2 * seed

    monkeypatch.setattr(quantization_aware, "trained", trained)
    monkeypatch.setattr(quantization_aware, "losses", losses)
    for kind in ("int4", "int8_int4"):
        words = f"benchmark --seeds 2 --kind {kind} --keep {tmp_path}"
        monkeypatch.setattr("sys.argv", words.split())
        quantization_aware.main()
        result = json.loads(capsys.readouterr().out)
        assert (result["kind"], result["loss_plain"]) == (kind, [0.1, 0.1])
        assert result["mean_gain"] == pytest.approx((0.3 + 1.3) / 2)
    assert begun == [0, 1]
