"""TRL's distillation: the model generates answers, and learns the teacher's probabilities of them.

Method: Agarwal et al. 2023, arXiv 2306.13649. `beta` goes from the forward (0) to the reverse KL
divergence (1).
"""

from pathlib import Path
from typing import Any

from infrastructure.config.field_help import format_value
from infrastructure.config.methods import Method, RowKind, stable
from infrastructure.core.errors import InputError
from infrastructure.core.json_text import json_of
from infrastructure.training.methods.check import check_model


class Distillation(Method):
    """The method, with the checks and the arguments of the teacher model."""

    def check(self, config: Any) -> None:
        training, teacher = config.training, config.training.teacher
        if training.beta != "auto" and training.beta > 1:
            raise InputError("distillation.beta_above_one", beta=format_value(training.beta))
        if teacher is None:
            raise InputError("distillation.teacher_missing")
        folders = [Path(name).expanduser() for name in (teacher, config.model.name)]
        if teacher.startswith((".", "/", "~")) and not folders[0].exists():
            raise InputError("distillation.teacher_folder_missing", teacher=teacher)
        if teacher == config.model.name or folders[0].resolve() == folders[1].resolve():
            raise InputError("distillation.teacher_is_model", teacher=teacher)
        check_model(teacher, "training.teacher")
        sizes = [_vocabulary_size(folder) for folder in folders]
        if None not in sizes and sizes[0] != sizes[1]:
            raise InputError(
                "distillation.vocabulary_differs", teacher_size=sizes[0], model_size=sizes[1]
            )

    def parts(self, training: Any) -> tuple[dict[str, object], dict[str, object]]:
        name = training.config.training.teacher
        teacher = training.find(name)
        if training.load_tokenizer(teacher).get_vocab() != training.tokenizer.get_vocab():
            raise InputError(
                "distillation.tokenizer_differs", teacher=name, model=training.config.model.name
            )
        loading = training.loading()
        as_model = {k: loading[k] for k in ("dtype", "use_safetensors", "device_map")}
        return {"teacher_model_init_kwargs": as_model}, {"teacher_model": teacher.location}


def _vocabulary_size(folder: Path) -> object:
    inside = folder if (folder / "config.json").is_file() else folder / "final"
    return json_of(inside / "config.json").get("vocab_size")


DISTILLATION = Distillation(
    "distillation",
    "Distillation",
    RowKind.PROMPTS,
    (stable("distillation"),),
    settings=("training.teacher",),
    refused={
        "teacher_model_init_kwargs": "distillation.loaded_as_model",
        "teacher_model_name_or_path": "distillation.set_teacher",
    },
)
