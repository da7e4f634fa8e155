"""`temper ask`: ask a trained model questions, in the format of its training."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from infrastructure.commands.arguments import add_folder_flags
from infrastructure.commands.output import show
from infrastructure.commands.settings import configure, resolve_model
from infrastructure.core.console import show_beside, waiting_beside
from infrastructure.core.exit_codes import ExitCode
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import blank, printable
from infrastructure.monitoring.records.run_list import naming_runs

LONGEST_ANSWER_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("model", metavar="MODEL", help=phrase("commands.help_model"))
    parser.add_argument(
        "questions",
        nargs="*",
        default=[],
        metavar="QUESTION",
        help=phrase("commands.help_questions"),
    )
    parser.add_argument(
        "--system",
        metavar="TEXT",
        help=phrase("commands.help_system_prompt"),
    )
    parser.add_argument(
        "--context",
        metavar="TEXT",
        help=phrase("commands.help_question_context"),
    )
    parser.add_argument(
        "--image",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=phrase("commands.help_question_image"),
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=LONGEST_ANSWER_TOKENS,
        metavar="N",
        help=phrase("commands.help_max_answer_tokens", default=LONGEST_ANSWER_TOKENS),
    )
    parser.add_argument("--json", action="store_true", help=phrase("commands.help_json_per_answer"))
    add_folder_flags(parser, "device")


def run(options: argparse.Namespace) -> int:
    """Answer each question, without regard to earlier questions and answers.

    Raises:
        ValueError: if there is no question, or the model cannot answer.
    """
    from infrastructure.deployment.given_paths import check_device, check_model

    if not all(question.strip() for question in options.questions):
        raise ValueError(phrase("commands.no_question_asked"))
    config = configure(options)
    with waiting_beside(phrase("deployment.loading_model")):
        model = resolve_model(options.model, Path(config.output_dir))
    check_device(config)
    with naming_runs(Path(config.output_dir)):
        check_model(model)
    is_piped = not options.questions and not sys.stdin.isatty()
    typed = _typed()
    first = next(typed, None) if is_piped else None  # before the model is loaded
    if is_piped and first is None:
        raise ValueError(phrase("commands.no_question_asked"))
    with waiting_beside(phrase("deployment.loading_model")):
        from infrastructure.data.encoding.row_schema import with_context
        from infrastructure.deployment.model_repair import repair_model
        from infrastructure.evaluation.prompting import Answerer
        from infrastructure.evaluation.run_settings import has_context
        from infrastructure.models.progress_bars import without_progress_bars
        from infrastructure.models.saved_model import notes_of_rounded

        repair_model(Path(model))
        with without_progress_bars():
            answerer = Answerer(model, options.max_tokens, config.device, options.image)
    notes = [*notes_of_rounded(model), *answerer.picture_notes()]
    for note in [] if options.json else notes:
        show_beside(note)
    if options.context is None and not options.json and has_context(Path(model)):
        show_beside(phrase("commands.note_model_expects_context"))
    num_answered = num_shown = 0
    for question in options.questions or chain([first] if first else [], typed):
        with waiting_beside("answering"):
            [written] = answerer.answers([with_context(question, options.context)], options.system)
        for note in [] if options.json else answerer.notes[num_shown:]:
            show_beside(note)
        num_shown = len(answerer.notes)
        answer = written.text.strip()
        num_answered += 1
        # The output of an untrained model could contain control sequences of the terminal.
        lines = [printable(line) for line in answer.strip().splitlines()] or [blank(written.text)]
        if options.questions:
            lines = [question, *(f"  {line}" for line in lines), ""]
        show(options.json, {"question": question, "answer": answer}, *lines)
        sys.stdout.flush()
        if written.is_cut and not options.json:
            show_beside(f"note: {answerer.why_cut(written)}")
    if not num_answered:
        raise ValueError(phrase("commands.no_question_asked"))
    return ExitCode.DONE


def _typed() -> Iterator[str]:
    """Yield the non-empty lines of standard input. On a terminal, print a prompt for each line."""
    is_terminal = sys.stdin.isatty()
    with suppress(EOFError):
        while True:
            if line := input("> " if is_terminal else "").strip():
                yield line
