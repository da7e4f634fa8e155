"""A runner of optional work, whose failures are logged and never stop the run."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from infrastructure.core.error_place import at_place, named
from infrastructure.core.messages import phrase

Result = TypeVar("Result")


class BestEffort:
    """A runner of optional actions. If one raises, the error is logged and the caller continues.

    Args:
        log: the logger for the first failure of each name, as a warning.
        message: the code of the message to log, which gets the values `name` and `error`.
        errors: the exceptions to catch; any other exception is raised.
        tries_again: whether to run actions of a name again after it has failed; otherwise that name
            is switched off.

    Attributes:
        num_failures: the number of failures, by name.
        first_error: type and text of the first error, by name.
    """

    def __init__(
        self,
        log: logging.Logger,
        message: str = "core.part_is_off",
        *,
        errors: tuple[type[Exception], ...] = (Exception,),
        tries_again: bool = False,
    ) -> None:
        self.log, self.message = log, message
        self.errors, self.tries_again = errors, tries_again
        self.num_failures: Counter[str] = Counter()
        self.first_error: dict[str, str] = {}

    def attempt(
        self, name: str, action: Callable[[], Result], *, even_if_off: bool = False
    ) -> Result | None:
        """Run `action` and return its result, or None if it fails or `name` is switched off.

        Args:
            even_if_off: run the action even if `name` is switched off, for example to close a file.
        """
        if self.is_off(name) and not even_if_off:
            return None
        try:
            return action()
        except self.errors as error:
            self.num_failures[name] += 1
            if name not in self.first_error:
                self.first_error[name] = named(error)
                text = phrase(self.message, name=name, error=error)
                self.log.warning("%s%s", text, at_place(error))
        return None

    def is_off(self, name: str) -> bool:
        """Return whether an action called `name` has failed and such actions are no longer
        tried.
        """
        return name in self.first_error and not self.tries_again
