"""When a run has stepped, and the page that compares starts."""

from pathlib import Path

from benchmarks.start_time import has_stepped


def test_a_run_has_stepped_when_a_loss_is_in_its_metrics(tmp_path: Path) -> None:
    assert not has_stepped(tmp_path)
    path = tmp_path / "a-run" / "metrics.jsonl"
    path.parent.mkdir()
    path.write_text('{"step": 0, "eval_loss": 2.5}\n')
    assert not has_stepped(tmp_path)
    path.write_text('{"step": 0, "eval_loss": 2.5}\n{"step": 1, "loss": 2.5}\n')
    assert has_stepped(tmp_path)
