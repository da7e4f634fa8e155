"""TRL's distillation: the model generates answers, and learns the teacher's probabilities of them.

Method: Agarwal et al. 2023, arXiv 2306.13649. `beta` goes from the forward (0) to the reverse KL
divergence (1).

A teacher may have more or fewer rows in its embedding than the model, although both have the same
tokenizer: embeddings are padded to different sizes. TRL refuses this. Here, the probabilities are
those of the tokens that both have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from infrastructure.config.field_help import format_value
from infrastructure.config.methods import Method, RowKind, stable
from infrastructure.core.errors import InputError
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

    def parts(self, training: Any) -> tuple[dict[str, object], dict[str, object]]:
        name = training.config.training.teacher
        teacher = training.find(name)
        if training.load_tokenizer(teacher).get_vocab() != training.tokenizer.get_vocab():
            raise InputError(
                "distillation.tokenizer_differs", teacher=name, model=training.config.model.name
            )
        training.embedding_rows(teacher, name)
        loading = training.loading()
        as_model = {k: loading[k] for k in ("dtype", "use_safetensors", "device_map")}
        return {"teacher_model_init_kwargs": as_model}, {"teacher_model": teacher.location}

    def adapted(self, training: Any, trainer_class: Any) -> Any:
        model, name = training.config.model.name, training.config.training.teacher
        teacher = training.find(name)
        num_rows = training.embedding_rows(training.source, model)
        num_teacher_rows = training.embedding_rows(teacher, name)
        if num_rows == num_teacher_rows:
            return trainer_class
        num_shared = min(num_rows, num_teacher_rows)

        def begin(self: Any, **parts: Any) -> None:
            loaded = training.load_beside(teacher, parts["args"].teacher_model_revision)
            # TRL would compare the sizes.
            trainer_class.__init__(self, **{**parts, "teacher_model": None})
            self.teacher_model = self.accelerator.prepare_model(loaded, evaluation_mode=True)
            own = self.generation_config.suppress_tokens or []
            unknown = range(num_shared, num_rows)  # the teacher has no embedding of them
            self.generation_config.suppress_tokens = [*own, *unknown] or None

        def compute_loss(self: Any, student: Any, *others: Any, **named: Any) -> Any:
            teacher = self.accelerator.unwrap_model(self.teacher_model)
            with _first_logits(student, num_shared), _first_logits(teacher, num_shared):
                return trainer_class._compute_loss(self, student, *others, **named)

        methods = {"__init__": begin, "_compute_loss": compute_loss}
        name = trainer_class.__name__
        return type(name, (trainer_class,), {**methods, "__module__": trainer_class.__module__})


@contextmanager
def _first_logits(model: Any, number: int) -> Iterator[None]:
    """Let TRL compute only the first logits of each token while the context lasts."""
    head = model.get_output_embeddings()
    bias = None if head.bias is None else head.bias[:number]
    first = SimpleNamespace(weight=head.weight[:number], bias=bias)
    model.get_output_embeddings = lambda: first
    try:
        yield
    finally:
        del model.get_output_embeddings


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
