"""The setting of the Prometheus endpoint."""

import re
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from infrastructure.config.base import ConfigSection
from infrastructure.config.types import Allowed
from infrastructure.core.errors import InputError

_HOST_AND_PORT = re.compile(r"(?:([\w.-]+|\[[0-9A-Fa-f:]+\]):)?(\d{1,5})")
_LOOPBACK = "127.0.0.1"


def _host_and_port(value: object) -> object:
    """Return `HOST:PORT`; for a port alone, the host is the loopback address."""
    if value is None:
        return None
    match = _HOST_AND_PORT.fullmatch(str(value).strip())
    if isinstance(value, bool) or match is None or not 0 < int(match[2]) < 1 << 16:
        raise InputError("metric_exporters.invalid_address")
    return f"{match[1] or _LOOPBACK}:{int(match[2])}"


class PrometheusMonitor(ConfigSection):
    """The field of the Prometheus endpoint in the section of the monitor."""

    prefix: ClassVar[str] = "monitor"

    prometheus: Annotated[
        str | None,
        BeforeValidator(_host_and_port),
        Allowed('a port such as 9400, or an address such as "0.0.0.0:9400"'),
    ] = Field(
        default=None,
        description="Address of a Prometheus endpoint to serve; a port alone listens on 127.0.0.1.",
    )
