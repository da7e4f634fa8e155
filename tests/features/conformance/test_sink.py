"""Our sinks keep the contract, and a sink with a defect does not."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from infrastructure.features.conformance.sink import SinkSuite
from infrastructure.monitoring.drawing.metrics_file import Record, decode_record, encode_record
from infrastructure.training.metrics.sinks import (
    ConsoleSink,
    CsvSink,
    JsonlSink,
    Sink,
    make_sinks,
)
from tests.features.conformance.planted import failure, without_defect


class TestJsonl(SinkSuite):
    def make(self, directory: Path) -> Sink:
        return make_sinks(["jsonl"], directory)[0]

    def read(self, directory: Path) -> list[dict[str, Any]]:
        return [decode_record(line) for line in lines_of(directory / "metrics.jsonl")]


class TestCsv(SinkSuite):
    def make(self, directory: Path) -> Sink:
        return CsvSink(directory / "metrics.csv")

    def read(self, directory: Path) -> list[dict[str, Any]]:
        with (directory / "metrics.csv").open(newline="") as file:
            return [row for row in csv.DictReader(file) if row["loss"]]


class TestConsole(SinkSuite):
    can_forget = False

    def make(self, directory: Path) -> Sink:
        return ConsoleSink(lambda line: None)


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


# Defects, each in a sink that is else sound.


class Sound(Sink):
    """A line a record, written at once."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "metrics.jsonl"

    def lines(self) -> list[bytes]:
        return lines_of(self.path)

    def write(self, record: Record) -> None:
        with self.path.open("ab") as file:
            file.write(encode_record(record))

    def truncate_after(self, step: int) -> None:
        self.replace(line for line in self.lines() if json.loads(line)["step"] <= step)

    def replace(self, lines: Iterable[bytes]) -> None:
        self.path.write_bytes(b"".join(line + b"\n" for line in [*lines]))


class NewestFirst(Sound):
    def write(self, record: Record) -> None:
        self.replace([encode_record(record).strip(), *self.lines()])


class LosesTheLastLine(Sound):
    """Writes a record when the next one comes, or at the end."""

    held: Record | None = None

    def write(self, record: Record) -> None:
        self.close()
        self.held = record

    def close(self) -> None:
        if self.held is not None:
            super().write(self.held)
        self.held = None


class BeginsAnew(Sound):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.path.unlink(missing_ok=True)


class ForgetsNothing(Sound):
    def truncate_after(self, step: int) -> None: ...


class ShowsNaNAsZero(Sound):
    def write(self, record: Record) -> None:
        super().write({k: 0.0 if v != v else v for k, v in record.items()})


class EndsForGood(Sound):
    is_closed = False

    def write(self, record: Record) -> None:
        if not self.is_closed:
            super().write(record)

    def close(self) -> None:
        self.is_closed = True


class HasNoName(Sound):
    name = ""


class IsNumbered(Sound):
    name = 3  # type: ignore[assignment]


class ForgetsOneMore(Sound):
    def truncate_after(self, step: int) -> None:
        super().truncate_after(step - 1)


class LosesTheFirstLine(Sound):
    def write(self, record: Record) -> None:
        super().write(record)
        self.replace(self.lines()[-4:])


DEFECTS: list[tuple[type[Sound], str, str]] = [
    (NewestFirst, "test_records_come_in_their_order", "there is [(5"),
    (LosesTheLastLine, "test_what_was_written_is_there_after_a_kill", "(4, 2.0)]"),
    (BeginsAnew, "test_a_run_that_goes_on_adds_to_what_there_is", "there is [(3"),
    (ForgetsNothing, "test_steps_that_are_done_again_are_forgotten", "there is"),
    (ShowsNaNAsZero, "test_it_takes_whatever_a_record_holds", "is shown as 0"),
    (EndsForGood, "test_a_record_after_the_end_opens_it_again", "there is []"),
    (HasNoName, "test_it_has_a_name", "is empty"),
    (IsNumbered, "test_it_has_a_name", "its name is no text: 3"),
    (ForgetsOneMore, "test_a_run_that_goes_on_adds_to_what_there_is", "there is [(3"),
    (ForgetsOneMore, "test_steps_that_are_done_again_are_forgotten", "(2, 1.0), (4, 9.0)]"),
    (LosesTheFirstLine, "test_records_come_in_their_order", "there is [(2"),
]


class Defective(SinkSuite):
    """Of the sink that the folder is called after: the killed process makes it, too."""

    def make(self, directory: Path) -> Sink:
        made: Sink = globals()[directory.name](directory)
        return made

    def read(self, directory: Path) -> list[dict[str, Any]]:
        return [decode_record(line) for line in lines_of(directory / "metrics.jsonl")]


class TestSound(Defective):
    def make(self, directory: Path) -> Sink:
        return Sound(directory)


@pytest.mark.parametrize(("kind", "test", "sentence"), DEFECTS)
def test_a_defect_is_seen(kind: type[Sound], test: str, sentence: str, tmp_path: Path) -> None:
    folder = tmp_path / kind.__name__
    folder.mkdir()
    message = failure(Defective(), test, folder)
    assert message is not None
    assert sentence in message


def test_without_a_way_to_look_a_test_is_skipped(tmp_path: Path) -> None:
    class Suite(TestConsole):
        survives_kill = False

    found = [
        failure(Suite(), test, tmp_path)
        for test in (
            "test_records_come_in_their_order",
            "test_what_was_written_is_there_after_a_kill",
            "test_steps_that_are_done_again_are_forgotten",
        )
    ]
    codes = ("sink_not_read", "sink_loses_newest", "sink_cannot_forget")
    assert found == [f"skipped: conformance.{code}()" for code in codes]


def test_each_test_has_a_defect_that_it_sees() -> None:
    assert without_defect(SinkSuite, {test for _, test, _ in DEFECTS}) == []


def test_ours_is_the_kind_that_a_run_makes(tmp_path: Path) -> None:
    assert isinstance(TestJsonl().make(tmp_path), JsonlSink)
