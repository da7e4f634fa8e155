"""Defects that once survived the tests of their module: each is tried beside what is drawn."""

import hashlib
from pathlib import Path

from tests.mutants.operators import Mutant

# What it is: the module, what stands there, and what is put in its place.
NAMED = {
    "a row that is cut learns the tokens before those that it is to learn": (
        "infrastructure/training/data/encoding/tokenization.py",
        "mask[: self.max_length].copy()",
        "mask[1 : self.max_length + 1].copy()",
    ),
    "the loss is normalised without the batch's last example": (
        "infrastructure/training/loop/optimizer_step.py",
        "self.adapter.count_items(examples))",
        "self.adapter.count_items(examples[:-1]))",
    ),
    "dropout is on while evaluating": (
        "infrastructure/training/forward/evaluation_loss.py",
        "            self.model.eval()\n",
        "            self.model.train()\n",
    ),
    "the best loss is not restored": (
        "infrastructure/training/checkpoints/snapshot.py",
        'state.best_evaluation_loss = _or(values["best_evaluation_loss"], float("inf"))',
        "pass",
    ),
    "a Trainer's best loss is not restored": (
        "infrastructure/training/hf_bridge/trainer_state.py",
        "state.best_evaluation_loss = math.inf if best is None else best",
        "pass",
    ),
    "an upload is confirmed without its objects": (
        "infrastructure/backup/replication/upload.py",
        "sent.confirmed_at is not None and self._objects_are_confirmed()",
        "sent.confirmed_at is not None",
    ),
    "a manifest does not wait for its objects": (
        "infrastructure/backup/replication/upload.py",
        "while not self._objects_are_confirmed():",
        "while False:",
    ),
    "what a place reads back comes from the page cache": (
        "infrastructure/backup/backends/base.py",
        "        place.forget_cached(path)\n",
        "\n",
    ),
    "what a store reads back comes from the page cache": (
        "infrastructure/backup/format/objects.py",
        "        self.operations.forget_cached(path)\n",
        "\n",
    ),
    "the page cache is not asked to forget": (
        "infrastructure/backup/format/file_operations.py",
        "os.POSIX_FADV_DONTNEED",
        "os.POSIX_FADV_NORMAL",
    ),
    "TemperCallback loses NumPy's state": (
        "infrastructure/training/hf_bridge/checkpoint_folder.py",
        '"numpy": ("MT19937", keys, position, has_gauss, float(states["numpy_gauss"][0])),',
        '"numpy": __import__("numpy").random.RandomState(0).get_state(),',
    ),
    "TemperCallback loses half of NumPy's state": (
        "infrastructure/training/hf_bridge/checkpoint_folder.py",
        "position, has_gauss, float(",
        "position, 0, float(",
    ),
    "a file has its name before its bytes are on the disk": (
        "infrastructure/core/files.py",
        "            os.fsync(file.fileno())\n        part.replace",
        "\n        part.replace",
    ),
    "a file's name is not on the disk": (
        "infrastructure/core/files.py",
        "        os.close(lock)\n    sync_directory(path.parent)\n",
        "        os.close(lock)\n\n",
    ),
    "a sampler is not told what time is left": (
        "infrastructure/quantum/quantum_step.py",
        "time_limit=deadline.seconds_left",
        "time_limit=deadline.seconds",
    ),
    "the next sampler is not told what time is left": (
        "infrastructure/quantum/samplers/fallback.py",
        "limit - (time.monotonic() - began)",
        "limit",
    ),
}


def named_mutants(root: Path) -> list[Mutant]:
    """All of them, in the sources as they are.

    Raises:
        ValueError: a text does not stand in its module exactly once.
    """
    found = []
    for what, (module, old, new) in NAMED.items():
        source = (root / module).read_text()
        if source.count(old) != 1:
            raise ValueError(f"{module} has not exactly one {old!r}: rewrite {what!r}")
        start = len(source[: source.index(old)].encode())
        line = source[: source.index(old)].count("\n") + 1
        key = hashlib.sha256(what.encode()).hexdigest()[:16]
        end = start + len(old.encode())
        found.append(Mutant(module, what, "named", start, end, line, old, new, key))
    return found
