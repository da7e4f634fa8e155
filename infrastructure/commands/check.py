"""What `temper check` does: every check on the machine, model and data of a configuration."""

import json
from dataclasses import dataclass
from pathlib import Path

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.deployment.signals import interrupt_on_signals
from infrastructure.run.output_dir import writable
from infrastructure.testing.results import GROUPS
from infrastructure.testing.test_pipeline import create_test_pipeline

DONE, FAILED = 0, 1


@dataclass(frozen=True)
class Told:
    """How to check.

    Attributes:
        quick: only what changes no weight, in seconds.
        as_json: print one JSON object, nothing else.
        strict: a warning counts as a failure.
        rebaseline: the times measured now are the measure for later ones.
    """

    quick: bool = False
    as_json: bool = False
    strict: bool = False
    rebaseline: bool = False


def check(config: DeploymentConfig, told: Told) -> int:
    """Check, show each result, write the report; the exit code says whether all is well."""
    writable(Path(config.output_dir))

    def say(line: str) -> None:
        if not told.as_json:
            print(line, flush=True)

    pipeline = create_test_pipeline(config, say=say, rebaseline=told.rebaseline)
    with interrupt_on_signals():
        pipeline.run_tests(*(GROUPS[:1] if told.quick else GROUPS))
    report = pipeline.generate_test_report()
    say(report["verdict"])
    say(f"report: {report['paths']['html']}")
    if told.as_json:
        print(json.dumps(report))
    return FAILED if pipeline.has_failed(strict=told.strict) else DONE
