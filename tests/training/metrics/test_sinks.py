import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from infrastructure.monitoring.drawing.metrics_file import read_metrics
from infrastructure.training.metrics.sinks import (
    ConsoleSink,
    CsvSink,
    JsonlSink,
    console_line,
    make_sinks,
    sinks_of_run,
)

EVALUATION = {"step": 20, "epoch": 0, "kind": "evaluation", "eval_loss": 2.5}


def step(number: int, **further: Any) -> dict[str, Any]:
    return {"step": number, "epoch": 0, "loss": 10.0 / number, **further}


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(None not in row and None not in row.values() for row in rows)
    return rows


# --- console -----------------------------------------------------------------


def test_a_console_line_reads_well() -> None:
    record = step(120, learning_rate=3e-4, grad_norm=1.23456, tokens=5000, seconds=2.0)
    record |= {"epoch": 1, "tokens_per_second": 2310.4, "memory_bytes": 1.5 * 2**30}
    assert console_line(record) == (
        "step 120  epoch 2  loss 0.08333  lr 3e-04  grad norm 1.23  2,310 tok/s  1.5 GiB"
    )
    assert console_line(record, total_steps=999).startswith("[ 12%] step 120/999  epoch 2  ")


def test_an_evaluation_line_names_every_number() -> None:
    record = {**EVALUATION, "eval_exact_match": 0.975, "note\n": "a\x1bb", "loss": math.nan}
    assert console_line(record) == (
        "step 20  epoch 1  loss NaN  held-out loss 2.500  exact match 97.5%  note  a�b"
    )
    by_turn = {"eval_loss_later_answers": 7.8741, "eval_end_accuracy": 0.25, "eval_own": 0.5}
    assert console_line({"step": 20, **by_turn}) == (
        "step 20  loss of later answers 7.874  answer ends predicted correctly 25.0%"
        "  eval_own 0.5000"
    )


def test_the_console_leaves_plain_steps_to_the_progress_and_shows_what_matters() -> None:
    lines: list[str] = []
    sink = ConsoleSink(lines.append)
    for number in range(1, 11):
        sink.write(step(number))
    sink.write(EVALUATION)
    sink.write(step(11, grad_norm=math.inf))
    sink.write(step(12, loss=math.nan))
    shown = [line.split("  ")[0] for line in lines]
    assert shown == ["step 20", "step 11", "step 12"]


def test_short_epochs_do_not_flood_the_console() -> None:
    """A line at every two percent, the first and the last one; none is lost where it is kept."""
    lines: list[str] = []
    sink = ConsoleSink(lines.append)
    sink.expect(200)
    for number in range(2, 201, 2):
        sink.write({**EVALUATION, "step": number})
    assert lines.pop(1) == "training.evaluations_omitted()"
    assert [line.split("  epoch ")[0] for line in lines] == [
        f"[{n / 2:3.0f}%] step {n}/200" for n in [*range(2, 200, 4), 200]
    ]
    sink.write({**EVALUATION, "step": 3, "eval_loss": math.nan})
    assert "NaN" in lines[-1]
    sink.expect(100)  # it resumes from an earlier step, with fewer steps in all
    sink.write({**EVALUATION, "step": 50})
    assert lines[-1].startswith("[ 50%] step 50/100")


def test_the_console_writes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleSink().write(EVALUATION)
    assert capsys.readouterr().out == "step 20  epoch 1  held-out loss 2.500\n"


# --- JSONL -------------------------------------------------------------------


def test_jsonl_goes_on_after_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonlSink(path)
    first.write(step(1))
    first.write(step(2, loss=math.nan))
    first.close()
    path.write_bytes(path.read_bytes() + b'{"step": 3, "lo')
    second = JsonlSink(path)
    second.write(step(3))
    second.close()
    records = read_metrics(path)
    assert [record["step"] for record in records] == [1, 2, 3]
    assert math.isnan(records[1]["loss"])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_jsonl_forgets_the_steps_after_the_resumed_one(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    for number in (10, 20, 30):
        sink.write(step(number))
        sink.write({**EVALUATION, "step": number})
    sink.truncate_after(20)
    sink.write(step(30, loss=0.5))
    sink.close()
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == [10, 10, 20, 20, 30]
    assert records[-1]["loss"] == 0.5


def test_an_unreadable_line_is_kept_for_people_to_see(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n???\n{"step": 9}\n')
    sink = JsonlSink(path)
    sink.truncate_after(5)
    assert path.read_bytes() == b'{"step": 1}\n???\n'


# --- CSV ---------------------------------------------------------------------


def test_csv_columns_that_appear_later_stay_aligned(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    sink.write(step(10, loss=math.nan, grad_norm=math.inf))
    sink.write(EVALUATION)
    sink.write({**EVALUATION, "eval_win_rate": 0.5, "a,b\n": "x,\ny"})
    sink.write(step(30))
    sink.close()
    rows = table_of(path)
    assert [row["step"] for row in rows] == ["10", "20", "20", "30"]
    assert (rows[0]["loss"], rows[0]["grad_norm"]) == ("NaN", "Infinity")
    assert [row["eval_loss"] for row in rows] == ["", "2.5", "2.5", ""]
    assert [row["eval_win_rate"] for row in rows] == ["", "", "0.5", ""]
    assert rows[2]["a,b"] == "x, y"
    assert math.isnan(float(rows[0]["loss"]))


def test_csv_goes_on_after_a_kill_with_the_columns_it_had(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = CsvSink(path)
    first.write(step(1, quantum_energy=-3.0))
    first.close()
    path.write_bytes(path.read_bytes() + b"2,,0,5.")
    second = CsvSink(path)
    second.write(step(2))
    second.write(step(3, quantum_energy=-4.0))
    second.close()
    rows = table_of(path)
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert [row["quantum_energy"] for row in rows] == ["-3.0", "", "-4.0"]


def test_csv_forgets_the_steps_after_the_resumed_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    for number in (10, 20, 30):
        sink.write(step(number))
    sink.close()
    with path.open("a") as file:
        file.write("?,,0,,,,,,,,\n")  # for people to see
    resumed = CsvSink(path)
    resumed.truncate_after(20)
    resumed.write(step(21, new=1.0, text="\ud800"))
    resumed.close()
    assert [row["step"] for row in table_of(path)] == ["10", "20", "?", "21"]
    assert table_of(path)[-1]["text"] == "\\ud800"  # half of a character


# --- the table of names ------------------------------------------------------


def test_sinks_by_name_write_into_the_run_directory(tmp_path: Path) -> None:
    sinks = make_sinks(["console", "jsonl", "csv"], tmp_path)
    assert [sink.name for sink in sinks] == ["console", "jsonl", "csv"]
    assert list(tmp_path.iterdir()) == []
    for sink in sinks:
        sink.write(step(1))
        sink.close()
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "metrics.csv"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ["jsonl"]),
        (["console"], ["jsonl", "console"]),
        (["console", "jsonl"], ["console", "jsonl"]),
    ],
)
def test_a_run_has_the_file_that_its_report_reads(
    tmp_path: Path, names: list[str], expected: list[str]
) -> None:
    sinks = sinks_of_run(iter(names), tmp_path, "my_losses:focal")
    assert [sink.name for sink in sinks] == expected
    assert {s.loss for s in sinks if isinstance(s, ConsoleSink)} <= {"my_losses:focal"}


def test_a_misspelt_sink_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"what=metrics sink, name=consol,.*\(meant=console\)"):
        make_sinks(["consol"], tmp_path)


def test_a_sink_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training\.duplicate_metrics_sinks.*names=csv"):
        make_sinks(["csv", "jsonl", "csv"], tmp_path)


def test_the_console_names_the_loss_that_is_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation: dict[str, Any] = {"step": 2, "kind": "evaluation", "eval_loss": 0.5}
    for loss in ("my_losses:focal", "cross_entropy"):
        make_sinks(["console"], tmp_path, loss)[0].write(evaluation)
    assert capsys.readouterr().out.splitlines() == [
        "step 2  held-out loss (my_losses:focal) 0.5000",
        "step 2  held-out loss 0.5000",
    ]
