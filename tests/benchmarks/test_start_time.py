"""When a run has stepped, and the page that compares starts."""

from pathlib import Path

from benchmarks.start_time import Starts, has_stepped, page


def test_a_run_has_stepped_when_a_loss_is_in_its_metrics(tmp_path: Path) -> None:
    assert not has_stepped(tmp_path)
    path = tmp_path / "a-run" / "metrics.jsonl"
    path.parent.mkdir()
    path.write_text('{"step": 0, "eval_loss": 2.5}\n')
    assert not has_stepped(tmp_path)
    path.write_text('{"step": 0, "eval_loss": 2.5}\n{"step": 1, "loss": 2.5}\n')
    assert has_stepped(tmp_path)


def test_starts_are_fast_by_the_clock_and_beside_the_imports() -> None:
    assert Starts([5.0, 5.5, 9.0], [3.0, 3.0, 5.0]).is_fast
    assert not Starts([6.5, 6.5, 6.5], [4.0, 4.0, 4.0]).is_fast  # by the clock
    assert not Starts([5.0, 5.0, 5.0], [2.0, 2.0, 2.0]).is_fast  # beside the imports
    assert "takes 2.50 times as long" in page(Starts([5.0], [2.0]))
