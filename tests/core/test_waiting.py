"""What may never answer is left behind."""

import threading

import pytest

from infrastructure.core.waiting import within


def test_the_answer_comes_back() -> None:
    assert within(10, lambda: 3) == 3
    assert within(10, lambda: None) is None


def test_an_error_is_raised_in_the_caller() -> None:
    with pytest.raises(KeyError, match="gone"):
        within(10, lambda: {}["gone"])


def test_without_an_answer_it_is_over_in_time() -> None:
    answers = threading.Event()
    with pytest.raises(TimeoutError, match=r"core\.no_response_in_time\(seconds=0\)"):
        within(0.1, lambda: answers.wait(60))
    answers.set()
