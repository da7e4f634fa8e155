"""Which settings make a training fastest on this machine: tried one after the other, and measured.

Each setting is tried with the best of those before it. A value is taken only where it pays: its
speed must be clearly higher over the whole training, what it costs at first (compiling) included,
and it must fit. What runs the steps is passed in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Differences below this are this machine's mood.
CLEARLY_FASTER = 1.03


@dataclass(frozen=True)
class Measured:
    """What a training of some settings does.

    Attributes:
        setup_seconds: before its speed is reached, once.
    """

    tokens_per_second: float
    peak_bytes: int
    setup_seconds: float = 0.0

    def seconds_for(self, num_tokens: float) -> float:
        """Of a training of so many tokens."""
        return self.setup_seconds + num_tokens / self.tokens_per_second


@dataclass(frozen=True)
class Tried:
    """One value of one setting; `refusal` says why it cannot be here, and is else empty."""

    key: str
    value: Any
    measured: Measured | None
    refusal: str = ""
    taken: bool = False


@dataclass
class PipelineOptimizer:
    """Tries settings and keeps those that pay.

    Attributes:
        measure: what a training with some changes of its settings does; raises ValueError where
            they cannot be.
        budget_bytes: the memory that may be taken.
        num_tokens: of the whole training.
        is_out_of_memory: whether an error means that.
        tell: is told each result when it is there.
    """

    measure: Callable[[Mapping[str, Any]], Measured]
    budget_bytes: int
    num_tokens: float
    is_out_of_memory: Callable[[BaseException], bool]
    tell: Callable[[Tried], None] = lambda tried: None
    settings: dict[str, Any] = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)

    def run(self, alternatives: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """The changes that pay, by key.

        Args:
            alternatives: values to try by key, in this order, besides the one that is there.
        """
        best = self._try("", None, {})
        for key, values in alternatives.items():
            for value in values:
                found = self._try(key, value, {**self.settings, key: value}, best)
                if found is not None:
                    best = found
                    self.settings[key] = value
        return dict(self.settings)

    def _try(
        self, key: str, value: Any, settings: Mapping[str, Any], best: Measured | None = None
    ) -> Measured | None:
        """What was measured, if it is better than `best`."""
        refusal, measured = "", None
        try:
            measured = self.measure(settings)
        except ValueError as error:
            refusal = str(error)
        except Exception as error:
            if not self.is_out_of_memory(error):
                raise
            refusal = "memory ran out"
        if measured is not None and measured.peak_bytes > self.budget_bytes:
            refusal = "takes more memory than there is"
        pays = measured is not None and not refusal and self._pays(measured, best)
        self.tried.append(Tried(key, value, measured, refusal, pays))
        self.tell(self.tried[-1])
        return measured if pays else None

    def _pays(self, measured: Measured, best: Measured | None) -> bool:
        if best is None:
            return True
        now, then = best.seconds_for(self.num_tokens), measured.seconds_for(self.num_tokens)
        return now > CLEARLY_FASTER * then
