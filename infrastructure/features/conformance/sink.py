"""The conformance suite of metrics sinks. Above all, records must survive a kill."""

import math
import os
import signal
from pathlib import Path
from typing import Any
from unittest import SkipTest

from infrastructure.core.messages import phrase
from infrastructure.features.conformance.other_process import call_elsewhere
from infrastructure.training.metrics.sinks import Sink

NUM_RECORDS = 5


class SinkSuite:
    """A suite for metrics sinks: subclass it and define `make` and, if possible, `read`.

    A test starts a process that imports the subclass and is killed, so the subclass must be in a
    module.

    Attributes:
        can_forget: True if `truncate_after` can remove later records; a display cannot do this.
        survives_kill: True if a record survives a kill as soon as `write` has returned.
    """

    can_forget = True
    survives_kill = True

    def make(self, directory: Path) -> Sink:
        """Return a new sink that writes into `directory`, created as in a resumed process."""
        raise NotImplementedError

    def read(self, directory: Path) -> list[dict[str, Any]]:
        """Return the records in `directory`, in their order, with at least `step` and `loss`."""
        raise SkipTest(phrase("conformance.sink_not_read"))

    def test_records_come_in_their_order(self, tmp_path: Path) -> None:
        sink = self.make(tmp_path)
        for step in range(1, NUM_RECORDS + 1):
            sink.write(record(step))
        sink.close()
        self._expect(tmp_path, {step: step / 2 for step in range(1, NUM_RECORDS + 1)})

    def test_what_was_written_is_there_after_a_kill(self, tmp_path: Path) -> None:
        if not self.survives_kill:
            raise SkipTest(phrase("conformance.sink_loses_newest"))
        writer, _ = call_elsewhere(type(self), "_write_and_die", str(tmp_path))
        assert writer.returncode == -signal.SIGKILL, f"it was to be killed: {writer.fate()}"
        self._expect(tmp_path, {step: step / 2 for step in range(1, NUM_RECORDS + 1)})

    def _write_and_die(self, directory: str) -> None:
        """Write records and die by SIGKILL, so that Python's buffers are not flushed."""
        sink = self.make(Path(directory))
        for step in range(1, NUM_RECORDS + 1):
            sink.write(record(step))
        os.kill(os.getpid(), signal.SIGKILL)

    def test_a_run_that_goes_on_adds_to_what_there_is(self, tmp_path: Path) -> None:
        for step in (1, 2, 3):
            sink = self.make(tmp_path)
            sink.truncate_after(step - 1)
            sink.write(record(step))
            sink.close()
        self._expect(tmp_path, {1: 0.5, 2: 1.0, 3: 1.5})

    def test_steps_that_are_done_again_are_forgotten(self, tmp_path: Path) -> None:
        sink = self.make(tmp_path)
        for step in range(1, 6):
            sink.write(record(step))
        sink.truncate_after(3)
        sink.write(record(4, loss=9.0))
        sink.close()
        if not self.can_forget:
            raise SkipTest(phrase("conformance.sink_cannot_forget"))
        self._expect(tmp_path, {1: 0.5, 2: 1.0, 3: 1.5, 4: 9.0})

    def test_it_takes_whatever_a_record_holds(self, tmp_path: Path) -> None:
        sink = self.make(tmp_path)
        sink.write(record(1, loss=math.nan, grad_norm=math.inf))
        sink.write(record(2, eval_of_mine=0.5, note='a "text", with\na break', nothing=None))
        sink.write({"step": 2, "epoch": 0, "kind": "evaluation", "eval_loss": 1.0})
        sink.close()
        first = self.read(tmp_path)[0]
        assert math.isnan(float(first["loss"])), f"a loss that is NaN is shown as {first['loss']}"

    def test_a_record_after_the_end_opens_it_again(self, tmp_path: Path) -> None:
        sink = self.make(tmp_path)
        sink.close()
        sink.write(record(1))
        sink.close()
        sink.close()
        self._expect(tmp_path, {1: 0.5})

    def test_it_has_a_name(self, tmp_path: Path) -> None:
        name = self.make(tmp_path).name
        assert isinstance(name, str), f"its name is no text: {name!r}"
        assert name, "its name is empty"

    def _expect(self, directory: Path, losses: dict[int, float]) -> None:
        written = [(int(one["step"]), float(one["loss"])) for one in self.read(directory)]
        expected = list(losses.items())
        assert written == expected, f"of (step, loss) {expected} there is {written}"


def record(step: int, **further: Any) -> dict[str, Any]:
    """Return a record like those that the training passes to a sink."""
    return {"step": step, "epoch": 0, "loss": step / 2, **further}
