"""What is done for a training and never worth one: it may fail, and that is told once."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from infrastructure.core.error_place import at_place, named
from infrastructure.core.messages import phrase

Result = TypeVar("Result")


class BestEffort:
    """Does things, each under a name; where one raises, that is logged and whoever asked goes on.

    Args:
        log: where the first failure under a name is told, as a warning.
        message: the code of its words, about `name` and `error`.
        errors: what is caught; anything else is raised.
        tries_again: after a failure the same name is done again; else it is switched off.

    Attributes:
        num_failures: by name.
        first_error: what was raised first, by name: its type and its text.
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
        """What `action` returns; None where it failed, or is switched off.

        Args:
            even_if_off: do it all the same: what was begun is ended.
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
        """Whether it failed and is not tried again."""
        return name in self.first_error and not self.tries_again
