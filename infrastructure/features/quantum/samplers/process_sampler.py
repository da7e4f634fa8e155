"""A wrapper that runs any dimod sampler in a separate process and ends it at the deadline.

Whatever goes wrong in the sampler (it hangs, raises, dies, or returns an invalid answer) becomes a
`SamplerError` here, at most half a second after the deadline. The process is started fresh, not
forked, because threads and a GPU may be in use here. It is kept for the next problem and ends with
this process.
"""

import contextlib
import os
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import dimod
import numpy as np

from infrastructure.core.errors import SamplerError
from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.json_text import JsonObject, as_text
from infrastructure.core.messages import phrase
from infrastructure.features.quantum.samplers import messages as wire
from infrastructure.features.quantum.samplers.bqm_arrays import (
    as_arrays,
    coefficient_sum,
    vectors_of,
)
from infrastructure.features.quantum.samplers.deadline import Deadline
from infrastructure.features.quantum.samplers.messages import Message
from infrastructure.features.quantum.solving.arrays import Array

MODULE = "infrastructure.features.quantum.samplers.sampler_process"
SHARE_KEPT_FREE = 0.05  # share of the time limit reserved for returning the answer
MOST_KEPT_FREE_SECONDS = 1.0
ENERGY_TOLERANCE = 1e-4  # relative to the sum of all coefficients: some solvers use float32


class ProcessSampler(dimod.Sampler):
    """A sampler that runs in another process.

    Args:
        name: a name in `sampler_process.DIRECT`, or `module:Class` of a custom sampler.
        known: keywords of `sample` besides `time_limit`. A custom class gets `num_reads`, `seed`
            and `time_limit` only if it knows them.
    """

    properties: ClassVar[dict[str, object]] = {}

    def __init__(self, name: str, known: tuple[str, ...] = ("num_reads", "seed")) -> None:
        self.name, self.known = name, known
        self._child: Child | None = None
        self._lock = threading.Lock()

    @property
    def parameters(self) -> dict[str, object]:
        return {name: [] for name in ("time_limit", *self.known)}

    def start(self) -> None:
        """Start the process before it is needed, without waiting for it."""
        if self._child is None or self._child.process.poll() is not None:
            self.close()
            self._child = Child()

    def close(self) -> None:
        """End the process. For the next problem, a new process is started."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def sample(
        self,
        bqm: dimod.BinaryQuadraticModel,
        *,
        time_limit: float | None = None,
        **parameters: object,
    ) -> dimod.SampleSet:
        """Query the sampler and wait at most `time_limit` seconds for the answer.

        Args:
            parameters: parameters of the sampler, as JSON values; unknown ones are rejected.

        Raises:
            SamplerError: the sampler raised, died, gave an invalid answer, or missed the deadline.
        """
        deadline = Deadline(time_limit)
        with self._lock:
            values, arrays = self._query(bqm, deadline, parameters)
        return _checked(self.name, bqm, values, arrays)

    def _query(
        self, bqm: dimod.BinaryQuadraticModel, deadline: Deadline, parameters: Mapping[str, object]
    ) -> Message:
        self.start()
        assert self._child is not None
        model, arrays = as_arrays(bqm)
        if deadline.seconds is not None:
            left = deadline.seconds_left
            free = min(SHARE_KEPT_FREE * left, MOST_KEPT_FREE_SECONDS)
            parameters = {**parameters, "time_limit": max(0.0, left - free)}
        question = {"sampler": self.name, "parameters": parameters, "model": model}
        try:
            values, results = self._child.exchange(question, arrays, deadline)
        except BaseException as error:
            self.close()  # its work is no longer needed
            if isinstance(error, TimeoutError):
                text = phrase(
                    "quantum.sampler_timed_out", sampler=self.name, seconds=deadline.seconds
                )
                raise SamplerError(text) from None
            if isinstance(error, EOFError | OSError | ValueError):
                raise SamplerError(
                    "quantum.sampler_process_died", sampler=self.name, error=error
                ) from error
            raise
        if "error" in values:
            raise SamplerError("quantum.sampler_failed", sampler=self.name, error=values["error"])
        return values, results


class Child:
    """A process that runs `sampler_process`, and ends when this process ends.

    Its argument is the file descriptor of a pipe whose other end this process holds open.
    """

    def __init__(self) -> None:
        lifeline, self._held = os.pipe()
        try:
            self.process = HelperProcess(
                MODULE,
                str(lifeline),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[lifeline],
                shows_words=True,
            )
        except BaseException:
            os.close(self._held)
            raise
        finally:
            os.close(lifeline)
        self.end = weakref.finalize(self, _end, self.process, self._held)

    def exchange(
        self, question: Mapping[str, object], arrays: dict[str, Array], deadline: Deadline
    ) -> Message:
        """Send a message and wait for the reply, in a thread, because both steps may block forever.

        Raises:
            TimeoutError: the deadline passed first.
            EOFError, OSError, ValueError: the process ended or wrote an invalid message.
        """
        questions: Any = self.process.stdin
        answers: Any = self.process.stdout
        got: list[Message | Exception] = []

        def talk() -> None:
            try:
                wire.send(questions, question, arrays)
                got.append(wire.receive(answers))
            except Exception as error:
                got.append(error)

        thread = threading.Thread(target=talk, name="quantum-sampler", daemon=True)
        thread.start()
        thread.join(None if deadline.seconds is None else max(0.0, deadline.seconds_left))
        if not got:
            raise TimeoutError
        if isinstance(got[0], Exception):
            raise got[0]
        return got[0]


def _end(process: HelperProcess, held: int) -> None:
    """End a process and everything that it has started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    os.close(held)
    process.wait()
    process.close_pipes()


def _checked(
    name: str,
    bqm: dimod.BinaryQuadraticModel,
    values: JsonObject,
    arrays: dict[str, Array],
) -> dimod.SampleSet:
    """Check a sampler's answer, and return it with energies that are computed here.

    Raises:
        SamplerError: the answer is empty, has values outside its vartype, or reports wrong
            energies.
    """
    samples, claimed = arrays["samples"], arrays["energies"]
    if not len(samples):
        raise SamplerError("quantum.sampler_returned_nothing", sampler=name)
    vartype = dimod.Vartype[as_text(values["vartype"])]
    if not np.isin(samples, list(vartype.value)).all():
        raise SamplerError(
            "quantum.sampler_returned_invalid_values", sampler=name, vartype=vartype.name
        )
    samples = samples.astype(np.int8)
    if vartype is not bqm.vartype:
        samples = 2 * samples - 1 if bqm.vartype is dimod.SPIN else (samples + 1) // 2
    sample_set = dimod.SampleSet.from_samples_bqm(
        (samples.astype(np.int8), list(bqm.variables)),
        bqm,
        info=values["info"],
        num_occurrences=np.maximum(1, arrays["occurrences"]),
    )
    wrong = np.abs(sample_set.record.energy - claimed)
    if not (wrong <= ENERGY_TOLERANCE * coefficient_sum(vectors_of(bqm))).all():
        raise SamplerError("quantum.sampler_energies_wrong", sampler=name)
    return sample_set
