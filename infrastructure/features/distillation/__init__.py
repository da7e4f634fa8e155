"""Knowledge distillation: a model learns from a teacher model, with TRL's trainer."""
