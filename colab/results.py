"""The output of cells before and after training: the data, the model and the report.

Without a notebook, the same content is printed as text.
"""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colab.training import as_cell
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sources.spelling import speaking
from infrastructure.core.errors import InputError
from infrastructure.core.lookup import look_up
from infrastructure.core.messages import phrase
from infrastructure.core.notebook import in_notebook_kernel
from infrastructure.core.optional import require
from infrastructure.data.data_pipeline import first_examples
from infrastructure.data.encoding.token_preview import (
    counts_line,
    kinds_of,
    token_preview,
)
from infrastructure.data.samples.sample_chats import write_sample_chats
from infrastructure.deployment.export import export_model
from infrastructure.deployment.export_request import ExportRequest, Part
from infrastructure.deployment.given_paths import check_model
from infrastructure.deployment.model_repair import repair_model
from infrastructure.deployment.one_call import evaluate_configured
from infrastructure.deployment.version_model import named_model
from infrastructure.evaluation.evaluate import Evaluation
from infrastructure.evaluation.prompting import answer_questions
from infrastructure.evaluation.request import Request
from infrastructure.models.saved_model import notes_of_rounded
from infrastructure.monitoring.drawing.formatting import blank
from infrastructure.monitoring.records.run_list import find_run_path, naming_runs
from infrastructure.monitoring.report.report import REPORT_FILE
from infrastructure.run.checkpoint_paths import step_of
from infrastructure.run.directory import find_run
from infrastructure.run.repair import repair_records_of
from infrastructure.training.checkpoints.checkpoint_manager import CheckpointManager
from infrastructure.training.trainer_factory import TrainerFactory

HEIGHT_PIXELS = 900
EXPORTED = "exported"
NUM_PREVIEWED = 2


def sample_chats(path: str | Path = "sample_chats.jsonl") -> Path:
    """Write sample conversations, which are always the same, to a file, and print its path."""
    written = write_sample_chats(Path(path).absolute())
    first = written.read_text(encoding="utf-8").partition("\n")[0]
    print(f"{written} begins with\n{first}")
    return written


@speaking(as_cell)
def show_data(config: DeploymentConfig) -> None:
    """Read the data as the training will, and show the rows and the tokens that are trained.

    The prepared data is kept, so the training does not prepare it again.

    Raises:
        ValueError: if the data or the model cannot be used.
    """
    trainer = TrainerFactory().for_run(config.changed([]), "transformers")
    trainer.initialize_model()
    data: Any = trainer.initialize_data()
    print(*data.report.lines(), sep="\n")
    print(phrase("notebook.example_preview_heading"))
    for one in first_examples(data, NUM_PREVIEWED):
        has_colour = in_notebook_kernel()
        print(token_preview(one.example, data.tokenizer, has_colour, one.left_out))
        print(counts_line(kinds_of(one.example, data.tokenizer)))


@speaking(as_cell)
def show_report(
    run: str | Path | None = None,
    height_pixels: int = HEIGHT_PIXELS,
    output_dir: str | Path = "runs",
) -> None:
    """Show the report of a run below the cell.

    Args:
        run: the ID, name or path of the run; by default, the newest run.
        output_dir: the directory of the runs.

    Raises:
        ValueError: if there is no such run, or it has no report yet.
    """
    given = Path(run or "")
    is_path = run is not None and given.is_dir()
    path = (given if is_path else find_run_path(_given(run), Path(output_dir))) / REPORT_FILE
    if not path.is_file():
        raise InputError("notebook.no_report_yet", path=path)
    if not in_notebook_kernel():
        print(f"The report: {path}")
        return
    display_page("report", path.read_text(encoding="utf-8"), height_pixels)


@speaking(as_cell)
def ask(
    model: str | Path,
    questions: str | Sequence[str],
    max_tokens: int = 64,
    system: str | None = None,
    output_dir: str | Path = "runs",
) -> list[str]:
    """Ask a trained model, and show its answers below the questions.

    Args:
        model: a finished run by its ID, name or path, `RUN@STEP` or `RUN@best`, its `final/`, any
            model folder, or a Hub name.
        questions: one question or several, as plain text. Prompt formats and chat templates are
            added as in training.
        max_tokens: the maximum length of an answer in tokens.
        system: the system prompt before each question, as in the training data.
        output_dir: the directory of the runs.

    Raises:
        ValueError: if there is no such model, or it does not generate text.
    """
    named = _model_named(model, Path(output_dir))
    repair_model(Path(named))
    for note in notes_of_rounded(named):
        print(note)
    questions = [questions] if isinstance(questions, str) else questions
    answers = answer_questions(named, questions, max_tokens, system=system)
    for question, answer in zip(questions, answers, strict=True):
        print(f"{question}\n  → {answer.strip() or blank(answer)}\n")
    return answers


@speaking(as_cell)
def evaluate(
    model: str | Path,
    data: str | Path,
    against: str | Path | None = None,
    max_tokens: int | None = None,
    output_dir: str | Path = "runs",
) -> Evaluation:
    """Evaluate a trained model on `data`, and show its loss and its answers, in total and by task.

    Args:
        model: a model as in `ask`.
        against: a second model, which is evaluated on the same rows and compared.
        max_tokens: the maximum length of an answer; by default, enough for the expected ones.
        output_dir: the directory of the runs.

    Raises:
        ValueError: if the model or the data cannot be used.
    """
    runs = Path(output_dir)
    named = _model_named(model, runs)
    folder = Path(named).absolute().parent  # for a run's `final/`, this is the run
    config = DeploymentConfig(model_name=named, data_path=str(data), output_dir=str(folder))
    other = None if against is None else _model_named(against, runs)
    evaluation, lines = evaluate_configured(config, Request(other, max_tokens=max_tokens))
    print(*lines, sep="\n")
    return evaluation


@speaking(as_cell)
def export(
    run: str | Path,
    step: int | None = None,
    *,
    part: str = "auto",
    bits: int | None = None,
    file_format: str = "safetensors",
    output_dir: str | Path = "runs",
) -> Path:
    """Export a checkpoint of `run` as a model folder, and verify it against the trained model.

    An existing folder is kept and returned.

    Args:
        run: the ID, name or path of the run, `RUN@STEP` or `RUN@best`.
        step: the step of the checkpoint; by default, the newest.
        part: `lora` for the adapter, `merged` for the LoRA merged with its base, `auto` for the
            model as trained.
        bits: 16, 8 or 4 bits per weight; by default, the trained format.
        file_format: safetensors, gguf, onnx, torch-export, or the format of an installed package.
        output_dir: the directory of the runs.

    Returns:
        The folder `exported/step-N` in the run. Options that differ from the defaults are added to
        its name.

    Raises:
        ValueError: if there is no such run or step; the message lists those that exist.
        CheckpointError: if the checkpoint is damaged.
    """
    named = str(run) if step is None else f"{run}@{step}"
    run_directory, checkpoint = find_run(named, Path(output_dir))
    checkpoint = checkpoint or CheckpointManager(run_directory.checkpoints).newest()
    repair_records_of(run_directory)
    part_named = look_up("part", part, {str(one): one for one in Part})
    request = ExportRequest(part_named, bits, file_format)
    special = [part] * (part != "auto") + [f"{bits}bit"] * (bits is not None)
    special += [file_format] * (file_format != "safetensors")
    name = "-".join([f"step-{step_of(checkpoint)}", *special])
    folder = run_directory.path / EXPORTED / name
    if folder.is_dir():
        print(phrase("notebook.already_exported", folder=folder))
        return folder
    facts = export_model(run_directory, checkpoint, folder, request)
    print(
        phrase(
            "notebook.step_exported",
            step=facts["step"],
            run=facts["run"],
            folder=facts["folder"],
        )
    )
    print(*[f"  {line}" for line in [*facts["lines"], *facts["notes"]]], sep="\n")
    return folder


def _model_named(model: str | Path, runs: Path) -> str:
    """Return the folder or Hub name of an existing model, named as on the command line."""
    named = named_model(str(model), runs)
    with naming_runs(runs):
        check_model(named)
    return named


def _given(run: str | Path | None) -> str | None:
    return None if run is None else str(run)


def display_page(title: str, content: str, height_pixels: int = HEIGHT_PIXELS) -> None:
    """Show a page below the cell in a frame, so that its styles do not affect the notebook."""
    style = f"width:100%;height:{height_pixels}px;border:0"
    frame = f'<iframe title="{title}" style="{style}" srcdoc="{html.escape(content)}"></iframe>'
    display = require("IPython.display", "notebook.showing_in_notebook")
    display.display(display.HTML(f'<div class="temper-{title}">{frame}</div>'))
