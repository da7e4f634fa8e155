"""A problem that another process solves while training continues."""

from infrastructure.core.errors import SamplerError
from infrastructure.features.quantum.config import QuantumConfig
from infrastructure.features.quantum.problems.problem import QuantumProblem
from infrastructure.features.quantum.samplers.deadline import Deadline
from infrastructure.features.quantum.samplers.process_sampler import Child
from infrastructure.features.quantum.solving.quantum_step import Solution
from infrastructure.features.quantum.solving.solve_process import question_of

MODULE = "infrastructure.features.quantum.solving.solve_process"


class AsyncSolve:
    """The solution of one problem in a separate process, which ends with this process.

    The separate process runs none of the training script's code. It gets the same problem, samplers
    and seed, so it returns the solution that `quantum_solve` would return here.
    """

    def __init__(self, problem: QuantumProblem, config: QuantumConfig, seed: int) -> None:
        self.problem = problem
        self._child = Child(MODULE)
        self._talk = self._child.talk(*question_of(problem, config, seed))

    @property
    def is_done(self) -> bool:
        """True if calling `result` does not have to wait."""
        return self._talk.is_over

    def result(self) -> Solution:
        """Wait for the solution and return it.

        Raises:
            SamplerError: the process died, or the solver raised an error there.
        """
        try:
            values, _ = self._talk.result(Deadline(None))
        except (EOFError, OSError, ValueError) as error:
            raise SamplerError("quantum.solver_process_gone", error=error) from error
        finally:
            self.close()
        if "error" in values:
            raise SamplerError(str(values["error"]))
        return Solution.from_json(values)

    def close(self) -> None:
        """End the process and everything it has started. A second call does nothing."""
        self._child.end()
