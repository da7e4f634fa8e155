"""A question that another process answers while the training goes on."""

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from infrastructure.config.resource_config import QuantumResources
from infrastructure.core.errors import SamplerError
from infrastructure.quantum.problems.problem import QuantumProblem
from infrastructure.quantum.quantum_step import Solution, quantum_solve

PATIENCE_SECONDS = 5.0  # of a process that was told to end

Solve = Callable[..., Solution]


class BackgroundSolve:
    """One question in a process of its own, which ends with this one.

    Args:
        solve: what answers there, by its name in its module.
    """

    def __init__(
        self,
        problem: QuantumProblem,
        resources: QuantumResources,
        seed: int,
        solve: Solve = quantum_solve,
    ) -> None:
        self.problem, self.seed = problem, seed
        context = get_context("spawn")  # forking a process that has threads may hang it
        self._answers, theirs = context.Pipe(duplex=False)
        work = (theirs, solve, problem, resources, seed)
        self._process = context.Process(target=_answer, args=work, daemon=True)
        self._process.start()
        theirs.close()  # so that a process that dies is heard of

    @property
    def is_done(self) -> bool:
        """Whether `result` returns, or raises, at once."""
        return self._answers.poll()

    def result(self) -> Solution:
        """The answer; waits for it.

        Raises:
            SamplerError: the process died, or what answers there raised.
        """
        try:
            answer = self._answers.recv()
        except EOFError:
            raise SamplerError("the process that was to answer is gone") from None
        finally:
            self.close()
        if isinstance(answer, str):
            raise SamplerError(answer)
        solution: Solution = answer
        return solution

    def close(self) -> None:
        """End the process; a second call does nothing."""
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(PATIENCE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
        self._answers.close()


def _answer(
    answers: Connection, solve: Solve, problem: QuantumProblem, resources: Any, seed: int
) -> None:
    """In the other process."""
    try:
        answers.send(solve(problem, resources, seed=seed))
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")
