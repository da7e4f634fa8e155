"""The dashboard: a web page that follows the runs of a folder."""

from infrastructure.core.features import Command, Feature

_HERE = "infrastructure.features.dashboard"

FEATURE = Feature(
    name="dashboard",
    commands={
        "dashboard": Command(
            f"{_HERE}.command", "follow the progress of runs in a browser", "Runs and backups"
        )
    },
    notebook={"show_dashboard": f"{_HERE}.notebook"},
)
