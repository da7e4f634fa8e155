"""Nothing that somebody set is silently without effect."""

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.planned import PARTS, later_of
from infrastructure.config.schema import schema_of


def test_nothing_waits_for_a_later_part() -> None:
    fields = schema_of(DeploymentConfig).fields
    assert [key for key, spec in fields.items() if later_of(spec)] == []
    assert PARTS == {}
