"""Questions that may never be answered, asked by a thread that can be left behind."""

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def within(seconds: float, question: Callable[[], Result]) -> Result:
    """The answer, or what `question` raised.

    Raises:
        TimeoutError: there was none in time; the thread waits on and ends with the process.
    """
    answers: list[Result] = []
    errors: list[BaseException] = []

    def get_answer() -> None:
        try:
            answers.append(question())
        except BaseException as error:  # raised again where it was asked
            errors.append(error)

    thread = threading.Thread(target=get_answer, daemon=True, name="temper-waiting")
    thread.start()
    thread.join(seconds)  # a signal ends this wait, whatever the thread hangs in
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return answers[0]
