"""Knowledge distillation, a method of TRL: the model learns from a teacher model."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.distillation"
_TEACHER = "training.teacher"

FEATURE = Feature(
    name="distillation",
    fields={"training": f"{_HERE}.config:DistillationTraining"},
    elsewhere=dict.fromkeys(("teacher_model", "teacher_model_name_or_path"), (_TEACHER,)),
    plugins={"temper.methods": {"distillation": f"{_HERE}.method:DISTILLATION"}},
    models=(_TEACHER,),
)
