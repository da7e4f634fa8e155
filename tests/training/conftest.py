"""Fixtures for tests of the training system."""

import pytest

from infrastructure.backup.replication import copier_client
from infrastructure.backup.writer import background_writer
from infrastructure.features.quantum.samplers import process_sampler
from tests.deployment.runs import ForkedHelper


@pytest.fixture(autouse=True)
def helpers_are_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that answer, save and copy have imported what a new Python takes a second for."""
    for module in (process_sampler, background_writer, copier_client):
        monkeypatch.setattr(module, "HelperProcess", ForkedHelper)
