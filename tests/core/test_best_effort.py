"""What fails is told once; whether it is tried again is the caller's word."""

import logging

import pytest

from infrastructure.core.best_effort import BestEffort

log = logging.getLogger(__name__)


def fail(text: str) -> None:
    raise OSError(text)


def test_what_fails_is_reported_once_and_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    effort, done = BestEffort(log), list[str]()
    assert effort.attempt("a", lambda: 3) == 3
    assert effort.attempt("a", lambda: fail("no space")) is None
    assert effort.attempt("a", lambda: done.append("again")) is None
    assert effort.attempt("b", lambda: 4) == 4
    assert (effort.is_off("a"), effort.is_off("b"), done) == (True, False, [])
    [message] = caplog.messages
    assert message.startswith("core.part_is_off(name=a, error=no space) at test_best_effort.py:")


def test_what_was_begun_is_ended_even_where_it_is_off(caplog: pytest.LogCaptureFixture) -> None:
    effort, done = BestEffort(log), list[str]()
    effort.attempt("a", lambda: fail("first"))
    effort.attempt("a", lambda: done.append("ended"), even_if_off=True)
    effort.attempt("a", lambda: fail("second"), even_if_off=True)
    assert done == ["ended"]
    assert len(caplog.messages) == 1


def test_what_is_tried_again_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    effort = BestEffort(log, "training.metrics_sink_failed", tries_again=True)
    effort.attempt("a", lambda: fail("first"))
    effort.attempt("a", lambda: fail("second"))
    assert effort.attempt("a", lambda: 5) == 5
    assert not effort.is_off("a")
    assert (effort.num_failures["a"], effort.first_error["a"]) == (2, "OSError: first")
    [message] = caplog.messages
    assert message.startswith("training.metrics_sink_failed(name=a, error=first) at test_best")


def test_other_errors_and_interrupts_are_not_caught() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(OSError, match="no space"):
        BestEffort(log, errors=(ValueError,)).attempt("a", lambda: fail("no space"))
    with pytest.raises(KeyboardInterrupt):
        BestEffort(log).attempt("a", interrupt)
