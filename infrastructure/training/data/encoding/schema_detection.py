"""Which shape the rows have, by what the configuration says and what columns there are.

The first rows decide, and the reason is told. Where no shape or several fit, nothing is guessed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from infrastructure.config.elsewhere import PREFERENCES
from infrastructure.core.lookup import unknown_name
from infrastructure.training.data.encoding.row_schema import (
    ALPACA,
    CHAT_KEYS,
    PROMPT,
    QA,
    SHAPES,
    TEXT,
    RowSchema,
    ShapeError,
    from_json_text,
)
from infrastructure.training.data.readers.rows import Row

PAIR_COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    PROMPT: (("prompt", "input"), ("completion", "response", "answer", "output", "target")),
    QA: (("question", "query", "problem"), ("answer", "response", "solution", "output")),
    ALPACA: (("instruction",), ("output", "response")),
}
CHAT_COLUMNS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat")
TEXT_COLUMNS = ("text", "content", "document")
CONTEXT_COLUMNS = ("input", "context")
LABEL_COLUMNS = ("label", "labels", "class", "sentiment", "target")
SYSTEM_COLUMNS = ("system", "system_prompt")
TEMPLATE_COLUMNS = {"tools": "tools", "options": "chat_template_kwargs"}  # as TRL names them
PREFERENCE_COLUMNS = ("chosen", "rejected")
PROMPT_NAMES = ("prompt", "question", "instruction", "query", "input")
SAMPLE_ROWS = 100
NUM_GROUPS_SHOWN = 4

Candidate = tuple[str, dict[str, str], str]


@dataclass(frozen=True)
class ShapeRequest:
    """What the configuration says about columns; None means: find out."""

    shape: str = "auto"
    prompt_column: str | None = None
    answer_column: str | None = None
    context_column: str | None = None
    text_column: str | None = None
    task_column: str | None = None
    group_column: str | None = None

    def check(self) -> None:
        """Refuse requests that contradict themselves.

        Raises:
            ValueError: says which settings do not go together.
        """
        if self.shape not in ("auto", *SHAPES):
            raise ValueError(f"data.shape: {unknown_name('shape', self.shape, ['auto', *SHAPES])}")
        pair = self.prompt_column or self.answer_column or self.context_column
        if self.text_column and pair:
            raise ValueError(
                "data.text_column is for plain text and data.prompt_column, answer_column and"
                " context_column for pairs: set one of the two kinds"
            )
        if self.text_column and self.shape not in ("auto", TEXT):
            raise ValueError(f"data.text_column does not go with data.shape={self.shape!r}")
        if pair and self.shape not in ("auto", *PAIR_COLUMNS):
            raise ValueError(
                "data.prompt_column, answer_column and context_column do not go with"
                f" {self.shape!r}"
            )


def recognise_shape(rows: Sequence[Row], request: ShapeRequest) -> RowSchema:
    """The shape of the rows, by what is asked for and by the columns that most of them have.

    Raises:
        ValueError: no shape or several shapes fit; names the columns found and the remedy.
    """
    request.check()
    columns = _common_columns(rows)
    if not columns:
        raise ValueError(f"the rows share no columns: {_seen(rows, request)}")
    for setting in ("prompt_column", "answer_column", "context_column", "text_column"):
        _check_exists(getattr(request, setting), f"data.{setting}", columns)
    _check_exists(request.task_column, "data.task_column", columns)
    _check_exists(request.group_column, "data.balance_by", columns)
    candidates = _candidates(rows, columns, request)
    if _is_preferences(columns, request):
        raise ValueError(_preferences(rows, columns))
    if len(candidates) != 1:
        if _is_mixed(rows, request):
            raise ValueError(f"the rows are of different shapes: {_seen(rows, request)}")
        raise ValueError(_unclear(columns, candidates, request))
    name, parts, reason = candidates[0]
    _refuse_labels(rows, candidates[0], columns, request)
    return RowSchema(name, parts, reason, request.task_column, request.group_column)


def _refuse_labels(
    rows: Sequence[Row], candidate: Candidate, columns: list[str], request: ShapeRequest
) -> None:
    """A label beside a text is what a classifier learns; one beside an answer that is true or false
    says which answers are bad. Whoever names shape or columns has decided.

    Raises:
        ValueError: says both ways to go on.
    """
    name, parts, _ = candidate
    if request.shape != "auto" or request.text_column or request.prompt_column:
        return
    labels = [c for c in _matching(LABEL_COLUMNS, columns) if c not in parts.values()]
    for label in labels:
        values = [row.values.get(label) for row in rows]
        if name == TEXT:
            text = parts["text"]
            raise ValueError(
                f"column {text!r} is text and column {label!r} its label, which a training on text"
                f" would leave out: set data.prompt_column={text} and data.answer_column={label} to"
                f" learn to answer with the label, or data.text_column={text} to learn the texts"
                " alone"
            )
        if all(isinstance(value, bool) for value in values):
            raise ValueError(
                f"column {label!r} says which answers are good and which are bad, as for KTO; this"
                " training would learn all of them: leave the bad ones out, or set"
                f" data.shape={name} to learn all"
            )


def _is_preferences(columns: list[str], request: ShapeRequest) -> bool:
    """Whether rows hold a better and a worse answer, and nobody said which column is learnt."""
    named = request.answer_column or request.text_column
    return not named and len(_matching(PREFERENCE_COLUMNS, columns)) == len(PREFERENCE_COLUMNS)


def _preferences(rows: Sequence[Row], columns: list[str]) -> str:
    (chosen,), prompts = (
        _matching(PREFERENCE_COLUMNS[:1], columns),
        _matching(PROMPT_NAMES, columns),
    )
    is_text = all(isinstance(row.values.get(chosen), str) for row in rows)
    if is_text and prompts:
        instead = f"data.prompt_column {prompts[0]} and data.answer_column {chosen}"
    elif is_text:
        instead = f"data.text_column {chosen}"
    else:
        instead = f"the column {chosen!r} under the name 'messages', without the other"
    return (
        f"the rows hold a better and a worse answer (columns: {', '.join(columns)}), and"
        f" {PREFERENCES}: to learn the better answers alone, give {instead}"
    )


def _common_columns(rows: Sequence[Row]) -> list[str]:
    counts = Counter(column for row in rows for column in row.values)
    return [column for column, count in counts.items() if 2 * count >= len(rows)]


def _check_exists(column: str | None, setting: str, columns: list[str]) -> None:
    if column and column not in columns:
        raise ValueError(f"{setting}: {unknown_name('column', column, columns)}")


def _candidates(rows: Sequence[Row], columns: list[str], request: ShapeRequest) -> list[Candidate]:
    candidates: list[Candidate] = []
    if not request.text_column:
        if not (request.prompt_column or request.answer_column or request.context_column):
            candidates += _chat_candidates(rows, columns)
        candidates += _pair_candidates(columns, request)
    if request.shape != "auto":
        candidates = [candidate for candidate in candidates if candidate[0] == request.shape]
    if request.shape in ("auto", TEXT) and not candidates:
        candidates = _text_candidates(columns, request)
    return candidates


def _chat_candidates(rows: Sequence[Row], columns: list[str]) -> list[Candidate]:
    candidates: list[Candidate] = []
    for column in _matching(CHAT_COLUMNS, columns):
        name = _kind_of_chat([row.values.get(column) for row in rows])
        if name:
            keys = " and ".join(map(repr, CHAT_KEYS[name]))
            parts = {"chat": column}
            words = f"column {column!r} lists messages with {keys}" + _add_others(parts, columns)
            candidates.append((name, parts, words))
    return candidates


def _kind_of_chat(values: Sequence[object]) -> str | None:
    kinds: Counter[str] = Counter()
    for value in values:
        try:
            messages = from_json_text(value, "")
        except ShapeError:
            continue
        first = messages[0] if isinstance(messages, list) and messages else None
        if isinstance(first, dict):
            kinds.update(name for name, keys in CHAT_KEYS.items() if keys[0] in first)
    return kinds.most_common(1)[0][0] if kinds else None


def _pair_candidates(columns: list[str], request: ShapeRequest) -> list[Candidate]:
    if request.prompt_column and request.answer_column:
        name = request.shape if request.shape in PAIR_COLUMNS else PROMPT
        return [_pair(name, request.prompt_column, request.answer_column, columns, request)]
    candidates = []
    for name, (prompts, answers) in PAIR_COLUMNS.items():
        if name == PROMPT and request.shape == "auto" and _matching(("instruction",), columns):
            prompts = prompts[:1]  # beside an instruction, "input" is its context
        left = [request.prompt_column] if request.prompt_column else _matching(prompts, columns)
        right = [request.answer_column] if request.answer_column else _matching(answers, columns)
        candidates += [_pair(name, p, a, columns, request) for p in left for a in right if p != a]
    if request.prompt_column or request.answer_column:
        candidates = list(
            {(c[1]["prompt"], c[1]["answer"]): c for c in reversed(candidates)}.values()
        )
    return candidates


def _pair(
    name: str, prompt: str, answer: str, columns: list[str], request: ShapeRequest
) -> Candidate:
    """Whoever names the prompt's column has put into it what belongs to it."""
    parts = {"prompt": prompt, "answer": answer}
    words = f"column {prompt!r} asks, column {answer!r} answers"
    context = [c for c in _matching(CONTEXT_COLUMNS, columns) if c not in (prompt, answer)]
    if request.prompt_column and name != ALPACA:
        context = []
    if request.context_column:
        context = [request.context_column]
    if context:
        parts["context"] = context[0]
        words += f", column {context[0]!r} is its context"
    return name, parts, words + _add_others(parts, columns)


def _add_others(parts: dict[str, str], columns: list[str]) -> str:
    """Give the columns that any conversation may have their parts; the words for it."""
    words = ""
    if system := _matching(SYSTEM_COLUMNS, columns):
        parts["system"] = system[0]
        words += f", column {system[0]!r} is the system message"
    for part, name in TEMPLATE_COLUMNS.items():
        if names := _matching((name,), columns):
            parts[part] = names[0]
            words += f", column {names[0]!r} goes to the chat template"
    return words


def _text_candidates(columns: list[str], request: ShapeRequest) -> list[Candidate]:
    names = [request.text_column] if request.text_column else _matching(TEXT_COLUMNS, columns)
    if not names and request.shape == TEXT and len(columns) == 1:
        names = columns
    return [(TEXT, {"text": name}, f"column {name!r} is plain text") for name in names]


def _matching(names: Sequence[str], columns: list[str]) -> list[str]:
    """The columns with these names, however capitalised, in the order of the names."""
    lower = {column.strip().lower(): column for column in columns}
    return [lower[name] for name in names if name in lower]


def _unclear(columns: list[str], candidates: list[Candidate], request: ShapeRequest) -> str:
    column_names = ", ".join(columns) or "none"
    if candidates:
        readings = "; or ".join(f"{name} ({reason})" for name, _, reason in candidates)
        return (
            f"the rows can be read in {len(candidates)} ways (columns: {column_names}): {readings}:"
            " say which with data.shape, or with data.prompt_column and data.answer_column"
        )
    wanted = "of no known shape" if request.shape == "auto" else f"not of the shape {request.shape}"
    return (
        f"the rows are {wanted} (columns: {column_names}): name the columns with"
        " data.prompt_column and data.answer_column, or with data.text_column for plain text"
    )


def _by_columns(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in groups of equal columns, the largest first."""
    groups: dict[frozenset[str], list[Row]] = {}
    for row in rows:
        groups.setdefault(frozenset(row.values), []).append(row)
    return sorted(groups.values(), key=len, reverse=True)


def _is_mixed(rows: Sequence[Row], request: ShapeRequest) -> bool:
    """Whether the shape is not clear because rows differ, not because one can be read in ways."""
    groups = _by_columns(rows)
    counts = {len(_candidates(group, list(group[0].values), request)) for group in groups}
    return max(counts) == 1


def _seen(rows: Sequence[Row], request: ShapeRequest) -> str:
    groups = _by_columns(rows)
    shown = "; ".join(_described(group, request) for group in groups[:NUM_GROUPS_SHOWN])
    more = f"; and {len(groups) - NUM_GROUPS_SHOWN} more" if len(groups) > NUM_GROUPS_SHOWN else ""
    return f"of the first {len(rows)}, {shown}{more}: bring them into one shape, or train on one"


def _described(rows: list[Row], request: ShapeRequest) -> str:
    columns = list(rows[0].values)
    names = {name for name, _, _ in _candidates(rows, columns, request)}
    shape = f"of the shape {names.pop()}" if len(names) == 1 else "of no clear shape"
    column_names = ", ".join(columns) or "none"
    return f"{len(rows)} are {shape} (columns: {column_names}; {rows[0].source}:{rows[0].line})"
