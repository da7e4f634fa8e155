"""The display of a run's stacks below a notebook cell."""

from pathlib import Path

from colab.results import display_page
from colab.training import as_cell
from infrastructure.config.sources.spelling import speaking
from infrastructure.core.errors import InputError
from infrastructure.core.notebook import in_notebook_kernel
from infrastructure.features.stackwise.report import stack_section, stacks_of
from infrastructure.monitoring.drawing.html_page import page
from infrastructure.monitoring.records.run_view import read_view


@speaking(as_cell)
def show_stacks(run: str | Path) -> list[dict[str, object]]:
    """Show the trained layers and the loss of each phase of a block-wise run.

    In a notebook, this displays the section of the report. Elsewhere, it prints a line for each
    phase.

    Returns:
        For each phase its name, first and last step, and the last loss, or None if there is none.

    Raises:
        ValueError: if the run is not block-wise.
    """
    view = read_view(Path(run))
    _, phases = stacks_of(view)
    if not phases:
        raise InputError("stackwise.notebook_no_stacks", run=run)
    if in_notebook_kernel():
        display_page("stacks", page("Block-wise training", stack_section(view)))
    else:
        print(*[bar.title for _, bar in phases], sep="\n")
    return [
        {
            "name": phase.get("name"),
            "first_step": bar.first_step + 1,
            "last_step": bar.last_step,
            "loss": bar.losses[-1][1] if bar.losses else None,
        }
        for phase, bar in phases
    ]
