"""The request for an evaluation on tasks, which is validated before torch is loaded."""

from dataclasses import dataclass
from pathlib import Path

from infrastructure.core.errors import InputError
from infrastructure.core.optional import refuse_missing

HARNESS = "lm_eval"


@dataclass(frozen=True)
class TaskRequest:
    """A request to evaluate on tasks of lm-evaluation-harness.

    Attributes:
        names: tasks of the harness, or of files in `folder`; `*` is a wildcard as in file names.
        folder: a folder with YAML files of custom tasks.
        limit: the number of rows of each task; None: all.
        num_fewshot: the number of examples before each question; None: the task's default.

    Raises:
        MissingPackageError: the harness is not installed.
        ValueError: no task is given, the folder does not exist, or a number is too small.
    """

    names: tuple[str, ...]
    folder: Path | None = None
    limit: int | None = None
    num_fewshot: int | None = None

    def __post_init__(self) -> None:
        if not self.names:
            raise InputError("lm_eval.no_tasks")
        if self.folder is not None and not self.folder.is_dir():
            raise InputError("lm_eval.tasks_path_missing", folder=self.folder)
        if self.limit is not None and self.limit < 1:
            raise InputError("lm_eval.limit_too_small", limit=self.limit)
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise InputError("lm_eval.num_fewshot_negative", num_fewshot=self.num_fewshot)
        refuse_missing(HARNESS, "lm_eval.evaluating_on_tasks")
