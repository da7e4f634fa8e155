"""Calls with a time limit. Each call runs in a thread, which is abandoned if it takes too long."""

import threading
from collections.abc import Callable
from typing import TypeVar

from infrastructure.core.messages import phrase

Result = TypeVar("Result")


def within(seconds: float, question: Callable[[], Result]) -> Result:
    """Call `question` and return its result, or raise its exception.

    Raises:
        TimeoutError: if the call does not return within `seconds`. The thread of the call is
            abandoned.
    """
    answers: list[Result] = []
    errors: list[BaseException] = []

    def get_answer() -> None:
        try:
            answers.append(question())
        except BaseException as error:  # raised again in the calling thread
            errors.append(error)

    thread = threading.Thread(target=get_answer, daemon=True, name="temper-waiting")
    thread.start()
    thread.join(seconds)  # a signal interrupts this wait, whatever blocks the thread
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(phrase("core.no_response_in_time", seconds=f"{seconds:.0f}"))
    return answers[0]
