"""The checks before a run, in order, so that a run that cannot succeed does not start.

The quick tier takes seconds and changes no weight. The full tier takes about a minute longer: it
trains real steps and undoes them, resumes from a checkpoint, saves and loads the model, and
measures the speed.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from infrastructure.core.error_place import caller_place, named
from infrastructure.core.errors import PreflightError
from infrastructure.core.hardware import detect
from infrastructure.core.messages import phrase
from infrastructure.models.token_functions import TokenFunctionError
from infrastructure.optimization.device_errors import (
    free_memory,
    is_out_of_memory,
    release_traceback,
)
from infrastructure.testing.doctor import Diagnosis, check_machine, examine
from infrastructure.testing.label_checks import (
    END_OF_ANSWERS,
    check_answers,
    check_ends,
    check_labels,
    check_template,
)
from infrastructure.testing.loss_checks import (
    check_accumulation,
    check_causality,
    check_isolation,
    check_loss,
)
from infrastructure.testing.own_part_checks import own_checks
from infrastructure.testing.parameter_checks import (
    check_learning,
    check_optimizer,
    check_start,
    check_steps,
    check_trainable,
    check_weights,
)
from infrastructure.testing.results import CheckResult, Group, has_failed, sentence
from infrastructure.testing.resume_checks import check_resume, check_saved_model
from infrastructure.testing.subject import Subject
from infrastructure.training.enhanced_trainer import EnhancedTrainer

Check = Callable[[Subject], CheckResult]

UNIT: tuple[Check, ...] = (
    check_weights,
    check_labels,
    check_ends,
    check_answers,
    check_template,
    check_loss,
    check_causality,
    check_isolation,
    check_accumulation,
    check_trainable,
    check_start,
    check_optimizer,
)
INTEGRATION: tuple[Check, ...] = (check_steps, check_learning, check_resume, check_saved_model)


def run_check(check: Check, subject: Subject, group: Group = "unit") -> CheckResult:
    """Run one check, and time it.

    A check that raises an error counts as failed, because the training would raise it, too. A check
    that runs out of memory counts as skipped, because the training would use smaller micro-batches.
    """
    name = check.__name__.removeprefix("check_").replace("_", " ")
    started = time.perf_counter()
    gives_way = False
    try:
        result = check(subject)
    except Exception as error:
        message = named(error)
        where = caller_place(error)
        if is_out_of_memory(error):
            result = CheckResult(
                name, "skipped", phrase("testing.check_out_of_memory", error=message)
            )
        elif isinstance(error, TokenFunctionError):
            result = CheckResult(name, "fail", str(error))
        elif where is not None:
            text = phrase("testing.own_code_raised", error=message, place=where)
            result = CheckResult(name, "fail", text, phrase("testing.fix_own_code"))
        else:
            result = CheckResult(name, "fail", phrase("testing.check_did_not_run", error=message))
        release_traceback(error)
        gives_way = True
    if gives_way:
        free_memory(subject.device)  # outside of the handler, which holds the call's variables
    return replace(result, group=group, seconds=time.perf_counter() - started)


def preflight(
    trainer: EnhancedTrainer, output_dir: Path, has_begun: bool = False
) -> list[CheckResult]:
    """Run the quick tier on a trainer that is about to train; the trainer is left unchanged.

    Args:
        has_begun: True if the run has trained before. Missing end tokens of answers then give only
            a warning, because they were checked at the start of the run.

    Raises:
        PreflightError: a check failed; the text names each failed check, and says what to do.
    """
    subject = Subject(trainer)
    own = [run_check(check, subject) for check in own_checks(subject)]
    results = [machine_check(output_dir), *own]
    if not has_failed(own):  # otherwise the others would report the same again
        results += [run_check(check, subject) for check in UNIT]
    if has_begun:
        results = [_as_warning(r) if r.name == END_OF_ANSWERS else r for r in results]
    if failed := [result for result in results if result.status == "fail"]:
        raise PreflightError("testing.preflight_failed", failed=sentence(failed))
    return results


def _as_warning(result: CheckResult) -> CheckResult:
    return replace(result, status="warn") if result.status == "fail" else result


def machine_check(output_dir: Path) -> CheckResult:
    """Check that there is free disk space and enough memory to start."""
    started = time.perf_counter()
    result = _from_findings("machine", list(check_machine(detect(output_dir))))
    return replace(result, seconds=time.perf_counter() - started)


def installation_check() -> CheckResult:
    """Return the result of `temper doctor` in one line."""
    started = time.perf_counter()
    result = _from_findings("installation", examine())
    return replace(result, seconds=time.perf_counter() - started)


def _from_findings(name: str, findings: list[Diagnosis]) -> CheckResult:
    levels: tuple[Literal["fail", "warn"], ...] = ("fail", "warn")
    for level in levels:
        if matching := [finding for finding in findings if finding.level == level]:
            if name == "installation" and level == "warn" and len(matching) > 1:
                subjects = ", ".join(finding.subject for finding in matching)
                text = phrase("testing.several_warnings", subjects=subjects)
                return CheckResult(name, level, text, phrase("testing.see_doctor"))
            text = "; ".join(f"{finding.subject}: {finding.text}" for finding in matching)
            remedy = "; ".join(finding.remedy for finding in matching if finding.remedy)
            return CheckResult(name, level, text, remedy)
    return CheckResult(name, "pass", phrase("testing.no_problems_found", num_items=len(findings)))
