"""Checks of a configuration's machine, model and data, run on request.

    pipeline = create_test_pipeline()
    results = pipeline.run_all_tests()
    report = pipeline.generate_test_report()

No run is started. The checks use a model of their own, and undo their changes to it.
"""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sources.load import load_config
from infrastructure.core.callbacks import do_nothing
from infrastructure.core.files import write_json
from infrastructure.core.messages import phrase
from infrastructure.data.preparation.doubts import (
    UnconfirmedDataError,
    check_meant,
)
from infrastructure.testing.own_part_checks import own_checks
from infrastructure.testing.preflight import (
    INTEGRATION,
    UNIT,
    Check,
    installation_check,
    machine_check,
    run_check,
)
from infrastructure.testing.results import (
    GROUPS,
    CheckResult,
    Group,
    count,
    has_failed,
    lines_of,
    verdict,
)
from infrastructure.testing.speed_checks import check_speed
from infrastructure.testing.subject import Subject
from infrastructure.training.enhanced_trainer import EnhancedTrainer
from infrastructure.training.resume.fingerprint import installed_versions
from infrastructure.training.trainer_factory import TrainerFactory

Results = dict[Group, list[CheckResult]]


class CheckPipeline:
    """All checks of a configuration, in three groups.

    The groups are unit (takes seconds, changes no weight), integration (real steps, a checkpoint, a
    saved model) and performance (times, compared with earlier ones).

    Args:
        config: the configuration whose machine, model and data are checked.
        report: receives each result as soon as it is available.
        rebaseline: use the times measured now as the baseline for later ones.
    """

    def __init__(
        self,
        config: DeploymentConfig,
        report: Callable[[str], None] = do_nothing,
        *,
        rebaseline: bool = False,
    ) -> None:
        self.config = config
        self.report = report
        self.rebaseline = rebaseline
        self.results: Results = {}
        self.about: dict[str, object] = {}

    def run_all_tests(self) -> Results:
        """Run the checks of all groups, which takes about a minute for a small model.

        Raises:
            ValueError, TemperError: model or data cannot be read; nothing was checked.
        """
        return self.run_tests(*GROUPS)

    def run_tests(self, *groups: Group) -> Results:
        """Run the checks of some groups, and return the results by group.

        Raises:
            ValueError, TemperError: model or data cannot be read; nothing was checked.
        """
        self.results = {}
        with TemporaryDirectory() as folder:
            subject = self._subject(Path(folder))
            self.about = describe_subject(subject)
            for group in GROUPS:
                if group in groups:
                    self.results[group] = self._run(group, subject)
        return self.results

    @property
    def all_results(self) -> list[CheckResult]:
        """The results of all groups, in one list."""
        return [result for group in self.results.values() for result in group]

    def generate_test_report(self, folder: Path | None = None) -> dict[str, Any]:
        """Write `report.json`; run the checks first if there are no results yet.

        Args:
            folder: where to write the file; None: a folder in `checks/` of the output folder,
                named by the time.

        Returns:
            The content of the file, and its `path`.

        Raises:
            OSError: the file cannot be written.
        """
        if not self.results:
            self.run_all_tests()
        results = self.all_results
        report = {
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "verdict": verdict(results),
            "passed": not has_failed(results),
            "counts": count(results),
            "checks": [result.to_dict() for result in results],
            "about": self.about,
        }
        name = time.strftime("%Y%m%d-%H%M%S")
        file = (folder or Path(self.config.output_dir) / "checks" / name) / "report.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, report)
        return {**report, "path": str(file)}

    def _subject(self, folder: Path) -> Subject:
        """Return the subject to check, which can create more trainers with the same tokenizer."""
        trainer = TrainerFactory().for_run(self.config)
        subject = Subject(trainer, lambda: self._another(folder))
        if trainer.adapter.tokenizer is not None:
            trainer.adapter.tokenizer.save_pretrained(folder)
        return subject

    def _another(self, tokenizer_folder: Path) -> EnhancedTrainer:
        return TrainerFactory().for_run(self.config, saved_tokenizer=tokenizer_folder)

    def _run(self, group: Group, subject: Subject) -> list[CheckResult]:
        results = []
        if group == "unit":
            results = [installation_check(), machine_check(Path(self.config.output_dir))]
            results += doubts_about(self.config.data)
            for result in results:
                self._report_result(result)
        for check in self._checks(group, subject):
            results.append(run_check(check, subject, group))
            self._report_result(results[-1])
        return results

    def _checks(self, group: Group, subject: Subject) -> tuple[Check, ...]:
        def speed(_: Subject) -> CheckResult:
            return check_speed(subject, rebaseline=self.rebaseline)

        unit = (*own_checks(subject), *UNIT)
        return {"unit": unit, "integration": INTEGRATION, "performance": (speed,)}[group]

    def _report_result(self, result: CheckResult) -> None:
        for line in lines_of([result])[1:-1]:
            self.report(line)

    def has_failed(self, *, strict: bool = False) -> bool:
        """Return whether a check failed; if `strict`, whether one failed or warned."""
        return has_failed(self.all_results, strict=strict)


def doubts_about(data: DataConfig) -> list[CheckResult]:
    """Return a failed result if a run would ask to confirm so small a dataset, else []."""
    try:
        check_meant(data)
    except UnconfirmedDataError as error:
        return [CheckResult("data", "fail", error.doubt, phrase("data.confirm_small_data"))]
    return []


def create_test_pipeline(config: DeploymentConfig | None = None, **options: Any) -> CheckPipeline:
    """Create the checks for `config`.

    If `config` is None, the configuration is read from the configuration file and the environment.
    Without settings there, the embedded model and the sample data are used.

    Args:
        options: keyword arguments for `CheckPipeline`.
    """
    return CheckPipeline(config if config is not None else load_config(), **options)


def describe_subject(subject: Subject) -> dict[str, object]:
    """Return a description of what is checked: model, data, precision, device, versions."""
    trainer = subject.trainer
    return {
        "model": subject.adapter.describe(),
        "data": trainer.data_config.path,
        "num_examples": subject.data.num_examples,
        "data_fingerprint": subject.data.fingerprint,
        "precision": trainer.precision.name,
        "device": str(subject.device),
        "versions": installed_versions(),
    }
