"""Samplers of one's own as another process loads them: one that answers, and some that do not."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any, ClassVar

import dimod
import numpy as np


class Answering(dimod.Sampler):
    """The exact answer; tells its process, and what it was asked with."""

    parameters: ClassVar[dict[str, Any]] = {"seed": [], "flavour": []}
    properties: ClassVar[dict[str, Any]] = {}

    def sample(self, bqm: dimod.BinaryQuadraticModel, **parameters: Any) -> dimod.SampleSet:
        print("what a sampler prints is no answer")
        found = dimod.ExactSolver().sample(bqm)
        found.info.update(process=os.getpid(), given=parameters, raw=object())
        return found


class Misbehaving(dimod.Sampler):
    """Does what it was made for."""

    parameters: ClassVar[dict[str, Any]] = {}
    properties: ClassVar[dict[str, Any]] = {}

    def __init__(self, how: str) -> None:
        self.how = how

    def sample(self, bqm: dimod.BinaryQuadraticModel, **parameters: Any) -> Any:
        return getattr(self, self.how)(bqm)

    def hang(self, bqm: dimod.BinaryQuadraticModel) -> None:
        time.sleep(600)

    def hang_with_a_child(self, bqm: dimod.BinaryQuadraticModel) -> None:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=True)

    def busy(self, bqm: dimod.BinaryQuadraticModel) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            pass

    def fail(self, bqm: dimod.BinaryQuadraticModel) -> None:
        raise RuntimeError("solver offline for token=DEV-" + "0123456789abcdef01234567")

    def die(self, bqm: dimod.BinaryQuadraticModel) -> None:
        os._exit(3)

    def give_text(self, bqm: dimod.BinaryQuadraticModel) -> str:
        return "42"

    def give_nothing(self, bqm: dimod.BinaryQuadraticModel) -> dimod.SampleSet:
        return dimod.ExactSolver().sample(bqm).truncate(0)

    def give_other_variables(self, bqm: dimod.BinaryQuadraticModel) -> dimod.SampleSet:
        return dimod.SampleSet.from_samples([{"x": 1}], "BINARY", energy=[0.0])

    def give_other_values(self, bqm: dimod.BinaryQuadraticModel) -> dimod.SampleSet:
        found = dimod.ExactSolver().sample(bqm)
        found.record.sample[:] = 7
        return found

    def give_wrong_energies(self, bqm: dimod.BinaryQuadraticModel) -> dimod.SampleSet:
        found = dimod.ExactSolver().sample(bqm)
        found.record.energy -= 100
        return found

    def give_no_energies(self, bqm: dimod.BinaryQuadraticModel) -> dimod.SampleSet:
        found = dimod.ExactSolver().sample(bqm)
        found.record.energy[:] = np.nan
        return found

    def fail_when_looked_at(self, bqm: dimod.BinaryQuadraticModel) -> dimod.SampleSet:
        from concurrent.futures import Future

        job: Future[dimod.SampleSet] = Future()
        job.set_exception(ConnectionError("the network is away"))
        return dimod.SampleSet.from_future(job, lambda done: done.result())


class NoSampler:
    """Has no method `sample`."""


# By their names in this module, as a configuration names them: `…misbehaving:hang`.
for _name in [name for name in vars(Misbehaving) if not name.startswith("_")]:
    globals()[_name] = partial(Misbehaving, _name)
