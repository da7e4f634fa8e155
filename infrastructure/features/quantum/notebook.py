"""The display of a run's quantum steps below a notebook cell."""

from pathlib import Path

from colab.results import display_page
from colab.training import as_cell
from infrastructure.config.sources.spelling import speaking
from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.core.notebook import in_notebook_kernel
from infrastructure.features.quantum.report import quantum_steps
from infrastructure.features.quantum.training.step_records import Record, read_records
from infrastructure.monitoring.drawing.html_page import page
from infrastructure.monitoring.records.run_view import read_view
from infrastructure.monitoring.report.report import REPORT_FILE


@speaking(as_cell)
def show_quantum_steps(run: str | Path) -> list[Record]:
    """Show the decisions of a run's quantum steps.

    In a notebook, this displays the section of the report. Elsewhere, it prints a line for each
    step.

    Returns:
        A record of each step.

    Raises:
        ValueError: if the run has made no quantum steps.
    """
    records = read_records(Path(run))
    if not records:
        raise InputError("quantum.no_quantum_step", run=run)
    if in_notebook_kernel():
        display_page("quantum-steps", page("Quantum steps", quantum_steps(read_view(Path(run)))))
    else:
        for record in records:
            text = record.get("chosen") or record.get("why") or ""
            print(f"step {record.get('step')} · {record.get('outcome')}: {text}".removesuffix(": "))
        report = Path(run) / REPORT_FILE
        if report.is_file():
            print(phrase("quantum.steps_in", report=report))
    return records
