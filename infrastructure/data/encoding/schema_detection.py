"""Detection of the shape of rows, such as question and answer, from configuration and columns.

The first rows decide, and the reason is reported. If no shape fits, or several shapes fit, an error
asks for settings.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.core.errors import InputError
from infrastructure.core.lookup import nearest, unknown_name
from infrastructure.core.messages import Setting, phrase
from infrastructure.data.encoding.column_names import (
    PREFERENCE_PAIRS,
    known_pairs,
    plain,
)
from infrastructure.data.encoding.row_schema import (
    ALPACA,
    BY_TURNS,
    CHAT_KEYS,
    CHOICES,
    HISTORY,
    MESSAGES,
    PICTURES,
    PROMPT,
    QA,
    SHAPES,
    SHAREGPT,
    TEXT,
    RowSchema,
    ShapeError,
    are_tools,
    choices_in,
    chosen_number,
    from_json_text,
    message_keys,
    value_of,
)
from infrastructure.data.readers.pictures import looks_like_picture
from infrastructure.data.readers.rows import Conversation, Row, excerpt

PAIR_COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    PROMPT: (("prompt", "input"), ("completion", "response", "answer", "output", "target")),
    QA: (("question", "query", "problem"), ("answer", "response", "solution", "output")),
    ALPACA: (("instruction",), ("output", "response")),
}
CHAT_COLUMNS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat")
USUAL_COLUMNS = (  # suggested if a name looks like a typo of one
    *CHAT_COLUMNS,
    *("prompt", "completion", "instruction", "output", "question", "answer", "text"),
)
OTHER_CHAT_COLUMNS = ("contents", "turns", "utterances")
TURNS_COLUMNS = (*CHAT_COLUMNS, *OTHER_CHAT_COLUMNS, "data")
CHOICES_COLUMNS = ("choices", "options")
PICTURE_COLUMNS = ("images", "image", "pictures", "picture", "image_path", "image_paths", "img")
TEXT_COLUMNS = ("text", "content", "document")
CONTEXT_COLUMNS = ("input", "context")
LABEL_COLUMNS = ("label", "labels", "class", "sentiment", "target")
SYSTEM_COLUMNS = ("system", "system_prompt", "systeminstruction", "system_instruction")
TEMPLATE_COLUMNS = {"tools": "tools", "options": "chat_template_kwargs"}  # TRL's names
PROMPT_NAMES = ("prompt", "question", "instruction", "query", "input")
SAMPLE_ROWS = 100
KNOWN_PAIRS = known_pairs(PROMPT, QA, ALPACA)
CHAT_MARKS = ("<|im_start|>", "[INST]", "### Human:", "### Instruction:", "<|user|>", "\n\nHuman:")
MESSAGE_ROW = frozenset({"parent_id", "role", "text"})
TREE_COLUMNS = ("mapping", "replies")
TOKENISED = "input_ids"
LABEL_STUDIO = frozenset({"annotations", "data"})
NUM_GROUPS_SHOWN = 3
NUM_COLUMNS_SHOWN = 6
COLUMN_CHARACTERS = 24

Candidate = tuple[str, dict[str, str], str]


def _check_request(request: DataConfig) -> None:
    """Reject settings that name columns and contradict each other.

    Raises:
        ValueError: settings cannot be combined; the text names them.
    """
    if request.shape not in ("auto", *SHAPES):
        raise InputError(
            "data.unknown_shape", reason=unknown_name("shape", request.shape, ["auto", *SHAPES])
        )
    pair = request.prompt_column or request.answer_column or request.context_column
    if request.prompt_column and request.prompt_column == request.answer_column:
        raise InputError("data.prompt_is_answer_column", column=request.prompt_column)
    if request.text_column and pair:
        raise InputError("data.text_and_pair_columns")
    if request.text_column and request.shape not in ("auto", TEXT):
        raise InputError("data.text_column_with_shape", shape=request.shape)
    if pair and request.shape not in ("auto", *PAIR_COLUMNS):
        raise InputError("data.pair_columns_with_shape", shape=request.shape)


def recognise_question(
    rows: Sequence[Row], request: DataConfig, answers: Sequence[str] = ()
) -> RowSchema:
    """Return a schema for the prompts of rows, without regard to their answers.

    Args:
        answers: the columns that hold answers to the prompt; empty if there are none.

    Returns:
        A schema whose methods `prompt_turns`, `inputs` and, for the columns in `answers`, `answers`
        can be called. If no column is recognized as a question, its `columns` have no role
        "prompt".
    """
    columns = [column for column in common_columns(rows) if column not in answers]
    named = matching((*PROMPT_NAMES, *CHAT_COLUMNS), columns)
    prompt = request.prompt_column or next(iter(named), None)
    parts: dict[str, str] = {}
    words = ""
    if prompt is not None:
        parts["prompt"] = prompt
        context = _contexts(PROMPT if request.prompt_column else ALPACA, [prompt], columns, request)
        words = phrase("data.recognized_prompt", column=prompt) + _add_context(parts, context)
    words += _add_others(parts, columns)
    _, parts, words = _with_more((PROMPT, parts, words), rows, columns, answers)
    words += _add_rare(parts, rows, columns, request)
    return RowSchema(PROMPT, parts, words)


def recognise_shape(rows: Sequence[Row], request: DataConfig) -> RowSchema:
    """Return the shape of the rows, given the settings and the columns that most rows have.

    Raises:
        ValueError: no shape or several shapes fit; the message names the columns and the remedy.
    """
    _check_request(request)
    columns = common_columns(rows)
    if not columns:
        raise InputError("data.no_common_columns", summary=_seen(rows, request))
    for setting in ("prompt_column", "answer_column", "context_column", "text_column"):
        _check_exists(getattr(request, setting), f"data.{setting}", rows, columns)
    if request.image_column not in ("auto", "none"):
        _check_exists(request.image_column, "data.image_column", rows, columns)
    _check_exists(request.task_column, "data.task_column", rows, columns)
    candidates = _candidates(rows, columns, request)
    if pair := _preference_pair(columns, request):
        raise InputError(_preferences(rows, columns, pair))
    pair_columns = (request.prompt_column, request.answer_column, request.context_column)
    if request.shape == "auto" and not any((*pair_columns, request.text_column)):
        _refuse_known(rows, columns)
    if len(candidates) != 1:
        if _is_mixed(rows, request):
            raise InputError("data.mixed_shapes", summary=_seen(rows, request))
        raise InputError(_unclear(rows, columns, candidates, request))
    name, parts, reason = candidates[0]
    _refuse_labels(rows, candidates[0], columns, request)
    _refuse_truth_values(rows, parts)
    reason += _add_rare(parts, rows, columns, request) if name != TEXT else ""
    if column := _picture_column(rows, columns, parts, request):
        if name == TEXT:
            raise InputError("data.images_without_prompt", column=column, text_column=parts["text"])
        parts[PICTURES] = column
        reason += phrase("data.column_holds_images", column=column)
    return RowSchema(name, parts, reason, request.task_column)


def _picture_column(
    rows: Sequence[Row], columns: list[str], parts: dict[str, str], request: DataConfig
) -> str | None:
    """Return the column with images: the configured column, or one recognized by its name and
    values.
    """
    if request.image_column != "auto":
        return None if request.image_column == "none" else request.image_column
    for column in matching(PICTURE_COLUMNS, columns):
        held = (value_of(row.values, column) for row in rows)
        if column not in parts.values() and any(map(looks_like_picture, held)):
            return column
    return None


def picture_words(rows: Sequence[Row], schema: RowSchema) -> str:
    """Describe where rows of this shape hold images; return "" if they hold none."""
    if PICTURES in schema.columns:
        return phrase("data.place_column", column=schema.columns[PICTURES])
    for row in rows:
        conversation = schema.convert(row)
        if isinstance(conversation, Conversation) and conversation.num_pictures:
            return phrase("data.images_in_messages", place=conversation.place)
    return ""


def advice(rows: Sequence[Row], schema: RowSchema) -> list[str]:
    """Return notes for rows whose author probably meant another interpretation."""
    if schema.name != TEXT:
        return []
    column = schema.columns["text"]
    texts = [value_of(row.values, column) for row in rows]
    marks = {mark for text in texts if isinstance(text, str) for mark in CHAT_MARKS if mark in text}
    if not marks:
        return []
    return [phrase("data.text_holds_formatted_chat", column=column, marks=min(marks).strip())]


def _refuse_known(rows: Sequence[Row], columns: list[str]) -> None:
    """Reject rows of well-known datasets that are not usable as training examples.

    Raises:
        ValueError: the rows are of such a dataset; the text says which, and what to do.
    """
    first = rows[0].values
    if set(columns) >= MESSAGE_ROW:
        raise InputError("data.one_message_per_row")
    inner = {key for value in first.values() if isinstance(value, dict) for key in value}
    if any(name in columns or name in inner for name in TREE_COLUMNS):
        raise InputError("data.message_trees")
    if TOKENISED in columns:
        raise InputError("data.rows_of_token_ids")
    if set(columns) >= LABEL_STUDIO:
        raise InputError("data.label_studio_tasks")


def _refuse_truth_values(rows: Sequence[Row], parts: dict[str, str]) -> None:
    """Reject answers that are only true or false.

    Raises:
        ValueError: answers are truth values; the text names the column and the remedy.
    """
    answer = parts.get("answer")
    values = [value_of(row.values, answer) for row in rows]
    if all(isinstance(value, bool) for value in values):
        raise InputError("data.boolean_answers", column=answer)


def _refuse_labels(
    rows: Sequence[Row], candidate: Candidate, columns: list[str], request: DataConfig
) -> None:
    """Reject rows with a label column, unless the user has set the shape or the columns.

    A label next to a text is meant for a classifier. A true/false label next to an answer marks
    good and bad answers.

    Raises:
        ValueError: the rows have a label; the text names the possible remedies.
    """
    name, parts, _ = candidate
    if request.shape != "auto" or request.text_column or request.prompt_column:
        return
    labels = [c for c in matching(LABEL_COLUMNS, columns) if c not in parts.values()]
    for label in labels:
        values = [row.values.get(label) for row in rows]
        if name == TEXT:
            text = parts["text"]
            named = _typed(text)
            raise InputError(
                "data.text_with_label",
                text=text,
                label=label,
                text_value=named,
                label_value=_typed(label),
            )
        if all(isinstance(value, bool) for value in values):
            raise InputError("data.answers_labeled_good_or_bad", label=label, shape=name)


def _preference_pair(columns: list[str], request: DataConfig) -> tuple[str, str] | None:
    """Return the columns of the better and the worse answer; None if there are none, or if a
    setting chooses the columns.
    """
    if request.answer_column or request.text_column or request.shape != "auto":
        return None
    for pair in PREFERENCE_PAIRS:
        if len(names := matching(pair, columns)) == len(pair):
            return names[0], names[1]
    return None


def _preferences(rows: Sequence[Row], columns: list[str], pair: tuple[str, str]) -> str:
    chosen, _ = pair
    prompts = matching(PROMPT_NAMES, columns)
    is_text = all(isinstance(row.values.get(chosen), str) for row in rows)
    if is_text and prompts:
        instead = phrase("data.set_pair_columns", prompt=_typed(prompts[0]), answer=_typed(chosen))
    elif is_text:
        instead = phrase("data.set_text_column_2", column=chosen)
    elif matching(CHAT_COLUMNS[:1], columns):
        instead = phrase("data.set_shape", shape=MESSAGES)
    else:
        instead = phrase("data.put_into_messages", chosen=chosen)
    return phrase(
        "data.preference_pairs",
        columns=" and ".join(map(repr, pair)),
        preferences=phrase("config.learns_from_pairs"),
        instead=instead,
    )


def common_columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns that at least half of the rows have."""
    counts = Counter(column for row in rows for column in row.values)
    return [column for column, count in counts.items() if 2 * count >= len(rows)]


def _check_exists(
    column: str | None, setting: str, rows: Sequence[Row], columns: list[str]
) -> None:
    """Reject a configured column that no row has. `a.b` means the key b inside the object a."""
    if not column or column in columns:
        return
    if not any(value_of(row.values, column) is not None for row in rows):
        known = [*columns, *(name for name in _leaves(rows, columns) if name not in columns)]
        raise InputError(
            "config.setting_says",
            setting=Setting(setting),
            reason=unknown_name("column", column, known),
        )


def _leaves(rows: Sequence[Row], columns: list[str]) -> list[str]:
    """Return the names of the columns that contain texts.

    Columns inside objects are included, with a dotted name such as `translation.de`.
    """
    leaves = []
    for column in columns:
        values = [v for row in rows if (v := row.values.get(column)) not in (None, "")]
        first = values[0] if values else None
        if isinstance(first, dict):
            leaves += [f"{column}.{key}" for key, text in first.items() if isinstance(text, str)]
        elif isinstance(first, str):
            leaves.append(column)
    return leaves


def _candidates(rows: Sequence[Row], columns: list[str], request: DataConfig) -> list[Candidate]:
    candidates: list[Candidate] = []
    if not request.text_column:
        if not (request.prompt_column or request.answer_column or request.context_column):
            candidates += _chat_candidates(rows, columns)
        pairs = _pair_candidates(columns, request)
        candidates += [_with_more(candidate, rows, columns) for candidate in pairs]
        if not candidates and not (request.prompt_column or request.answer_column):
            known = _known_pairs(rows, columns, request)
            candidates = [_with_more(candidate, rows, columns) for candidate in known]
    if request.shape != "auto":
        candidates = [candidate for candidate in candidates if candidate[0] == request.shape]
    if request.shape in ("auto", TEXT) and not candidates:
        candidates = _text_candidates(columns, request)
    return candidates


def _chat_candidates(rows: Sequence[Row], columns: list[str]) -> list[Candidate]:
    candidates: list[Candidate] = []
    for column in matching((*CHAT_COLUMNS, *OTHER_CHAT_COLUMNS), columns):
        name, keys = _kind_of_chat([row.values.get(column) for row in rows])
        if name:
            parts = {"chat": column}
            named = " and ".join(map(repr, keys))
            words = phrase(
                "data.recognized_messages",
                column=column,
                keys=named,
                others=_add_others(parts, columns),
            )
            candidates.append((name, parts, words))
    for column in [] if candidates else matching(TURNS_COLUMNS, columns):
        if _are_turns([row.values.get(column) for row in rows]):
            parts = {"chat": column, BY_TURNS: column}
            words = phrase("data.recognized_turns", column=column)
            candidates.append((MESSAGES, parts, words + _add_others(parts, columns)))
    return candidates


def _kind_of_chat(values: Sequence[object]) -> tuple[str | None, tuple[str, str]]:
    """Return the usual chat shape in a column of messages, and its keys for role and text."""
    kinds: Counter[tuple[str, tuple[str, str]]] = Counter()
    for value in values:
        try:
            messages = from_json_text(value, "")
        except ShapeError:
            continue
        first = messages[0] if isinstance(messages, list) and messages else None
        if isinstance(first, dict):
            keys = message_keys(first)
            if keys[0] in first:
                name = SHAREGPT if keys[0] == CHAT_KEYS[SHAREGPT][0] else MESSAGES
                kinds[name, keys] += 1
    return kinds.most_common(1)[0][0] if kinds else (None, ("", ""))


def _are_turns(values: Sequence[object]) -> bool:
    """Return whether each value is a list of two or more texts, alternating user and assistant."""
    return all(
        isinstance(value, list) and len(value) > 1 and all(isinstance(text, str) for text in value)
        for value in values
    )


def _known_pairs(rows: Sequence[Row], columns: list[str], request: DataConfig) -> list[Candidate]:
    """Return pairs of a question and an answer column with names from known datasets or
    languages.
    """
    lists = {c for c in columns if any(isinstance(row.values.get(c), list) for row in rows)}
    by_name = {plain(column): column for column in columns}
    candidates = []
    for pair in KNOWN_PAIRS:
        if pair.answer in by_name and by_name.get(pair.prompt) not in (None, *lists):
            named = [by_name[name] for name in pair.contexts if name in by_name]
            prompt, answer = by_name[pair.prompt], by_name[pair.answer]
            context = [request.context_column] if request.context_column else named
            candidates.append(_pair_with(pair.shape, prompt, answer, context, columns))
    return candidates


def _with_more(
    candidate: Candidate, rows: Sequence[Row], columns: list[str], answers: Sequence[str] = ()
) -> Candidate:
    """Return a pair of prompt and answer column, extended by columns for choices and earlier
    messages.

    Args:
        answers: the columns with answers, if the pair itself has no answer column.
    """
    name, parts, words = candidate
    taken = parts.values()
    answers = answers or [parts.get("answer", "")]
    for column in matching(CHOICES_COLUMNS, columns):
        if column not in taken and all(_chooses(rows, column, answer) for answer in answers):
            parts[CHOICES] = column
            words += phrase("data.recognized_choices", column=column)
            break
    for column in matching((HISTORY,), columns):
        if column not in taken and any(isinstance(row.values.get(column), list) for row in rows):
            parts[HISTORY] = column
            words += phrase("data.recognized_history", column=column)
    return name, parts, words


def _chooses(rows: Sequence[Row], column: str, answer: str) -> bool:
    """Return whether each answer is the number or the label of a choice listed in `column`.

    If `answer` is "", return whether each row has a list of choices in `column`.
    """
    for row in rows:
        texts, labels = choices_in(value_of(row.values, column))
        is_named = not answer or chosen_number(value_of(row.values, answer), labels) is not None
        if not texts or not is_named:
            return False
    return True


def _pair_candidates(columns: list[str], request: DataConfig) -> list[Candidate]:
    if request.prompt_column and request.answer_column:
        name = request.shape if request.shape in PAIR_COLUMNS else PROMPT
        return [_pair(name, request.prompt_column, request.answer_column, columns, request)]
    candidates = []
    for name, (prompts, answers) in PAIR_COLUMNS.items():
        if name == PROMPT and request.shape == "auto" and matching(("instruction",), columns):
            prompts = prompts[:1]  # next to an instruction, "input" is its context
        left = [request.prompt_column] if request.prompt_column else matching(prompts, columns)
        right = [request.answer_column] if request.answer_column else matching(answers, columns)
        candidates += [_pair(name, p, a, columns, request) for p in left for a in right if p != a]
    if request.prompt_column:
        candidates = list(
            {(c[1]["prompt"], c[1]["answer"]): c for c in reversed(candidates)}.values()
        )
    return candidates


def _pair(
    name: str, prompt: str, answer: str, columns: list[str], request: DataConfig
) -> Candidate:
    context = _contexts(name, (prompt, answer), columns, request)
    return _pair_with(name, prompt, answer, context, columns)


def _contexts(
    name: str, taken: Sequence[str], columns: list[str], request: DataConfig
) -> list[str]:
    """Return the columns with context: the configured column, or columns recognized by their names.

    If the user has set the prompt column, no context is searched for (except with alpaca), because
    that column should contain the whole prompt.
    """
    if request.context_column:
        return [request.context_column]
    if request.prompt_column and name != ALPACA:
        return []
    return [column for column in matching(CONTEXT_COLUMNS, columns) if column not in taken]


def _pair_with(
    name: str, prompt: str, answer: str, context: Sequence[str], columns: list[str]
) -> Candidate:
    parts = {"prompt": prompt, "answer": answer}
    words = phrase("data.recognized_pair", prompt=prompt, answer=answer)
    words += _add_context(parts, context)
    return name, parts, words + _add_others(parts, columns)


def _add_context(parts: dict[str, str], context: Sequence[str]) -> str:
    if not context:
        return ""
    parts["context"] = context[0]
    return phrase("data.recognized_context", column=context[0])


def _add_others(parts: dict[str, str], columns: list[str]) -> str:
    """If there is a system column, add it to the roles in `parts`, and return a description."""
    words = ""
    if system := matching(SYSTEM_COLUMNS, columns):
        parts["system"] = system[0]
        words += phrase("data.recognized_system_message", column=system[0])
    return words


def _add_rare(
    parts: dict[str, str], rows: Sequence[Row], columns: Sequence[str], request: DataConfig
) -> str:
    """Add columns that only few rows have to the roles in `parts`, and return a description of
    them.

    These are columns of conversations, and columns with further inputs of the chat template.
    """
    present = dict.fromkeys(name for row in rows for name in row.values)
    rare = [name for name in present if name not in columns and name not in parts.values()]
    words = ""
    if "prompt" in parts and "context" not in parts:
        shape = PROMPT if request.prompt_column else ALPACA
        words += _add_context(parts, _contexts(shape, [parts["prompt"]], rare, request))
    if "system" not in parts:
        words += _add_others(parts, rare)
    return words + _add_template_inputs(parts, rows, [*columns, *rare])


def _add_template_inputs(parts: dict[str, str], rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Add columns with inputs of the chat template besides messages to the roles in `parts`.

    Return a description of these columns.
    """
    words = ""
    for part, name in TEMPLATE_COLUMNS.items():
        for column in matching((name,), [c for c in columns if c not in parts.values()]):
            held = [v for row in rows if (v := value_of(row.values, column)) not in (None, "", [])]
            if part == "tools" and not any(map(are_tools, held)):
                continue
            parts[part] = column
            words += phrase("data.recognized_template_input", column=column)
    return words


def _text_candidates(columns: list[str], request: DataConfig) -> list[Candidate]:
    names = [request.text_column] if request.text_column else matching(TEXT_COLUMNS, columns)
    if not names and request.shape == TEXT and len(columns) == 1:
        names = columns
    return [
        (TEXT, {"text": name}, phrase("data.recognized_plain_text", column=name)) for name in names
    ]


def matching(names: Sequence[str], columns: list[str]) -> list[str]:
    """Return the columns that have one of these names, ignoring case, in the order of `names`."""
    lower = {column.strip().lower(): column for column in columns}
    return [lower[name] for name in names if name in lower]


def shown(columns: Sequence[str]) -> str:
    """Return the names of the first few columns for a message; long names are shortened."""
    names = [excerpt(column, COLUMN_CHARACTERS) for column in columns[:NUM_COLUMNS_SHOWN]]
    more = len(columns) - len(names)
    return (", ".join(names) or "none") + (f" and {more} more" if more else "")


def _unclear(
    rows: Sequence[Row], columns: list[str], candidates: list[Candidate], request: DataConfig
) -> str:
    if candidates:
        ways = "; ".join(
            f"{name} ({shown([*parts.values()][:2])})" for name, parts, _ in candidates[:3]
        )
        return phrase(
            "data.ambiguous_shape",
            num_ways=len(candidates),
            columns=shown(columns),
            ways=ways,
        )
    if request.shape == "auto" and bool(request.prompt_column) != bool(request.answer_column):
        return _other_column(columns, request)
    wanted = (
        phrase("data.in_no_known_shape")
        if request.shape == "auto"
        else phrase("data.not_in_shape", shape=request.shape)
    )
    odd = [name for name in columns if name not in USUAL_COLUMNS]
    short = [name for name in odd if len(name) <= COLUMN_CHARACTERS]
    meant = ((name, nearest(name, USUAL_COLUMNS)) for name in short)
    slips = [phrase("data.meant_column", name=name, known=known) for name, known in meant if known]
    hint = slips[0] if slips and request.shape == "auto" else ""
    return phrase(
        "data.unrecognized_rows",
        wanted=wanted,
        columns=shown(columns),
        hint=hint,
        advice=_way_on(rows, columns),
    )


def _other_column(columns: list[str], request: DataConfig) -> str:
    """Return the error for a configuration that names only one of the two columns prompt and
    answer.
    """
    has_prompt = request.prompt_column is not None
    what = "the answers" if has_prompt else "the prompts"
    key = f"data.{'answer' if has_prompt else 'prompt'}_column"
    named = {request.prompt_column, request.answer_column}
    others = [column for column in columns if column not in named]
    return phrase(
        "data.second_pair_column_unknown",
        column=request.prompt_column or request.answer_column,
        held="the prompts" if has_prompt else "the answers",
        missing=what,
        others=shown(others),
        key=Setting(key),
    )


def _way_on(rows: Sequence[Row], columns: list[str]) -> str:
    """Return advice on which column settings to use, with names of columns if they are
    recognizable.
    """
    texts = [name for name in _leaves(rows, columns) if plain(name) != "id"]
    texts = [name for name in texts if len(name) <= 2 * COLUMN_CHARACTERS]
    nested = (list, dict)
    has_others = any(isinstance(rows[0].values.get(column), nested) for column in columns)
    if len(texts) == 1 and not has_others:
        return phrase("data.set_text_column", column=_typed(texts[0]))
    if len(texts) == 2 and (not has_others or "." in texts[0]):
        return phrase("data.set_prompt_and_answer", first=_typed(texts[0]), second=_typed(texts[1]))
    return phrase("data.set_columns")


def _typed(column: str) -> str:
    """Return a column name as the user must type it: quoted if it has unusual characters."""
    return column if re.fullmatch(r"[\w.-]+", column) else json.dumps(column, ensure_ascii=False)


def _by_columns(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows in groups with the same columns, the largest group first."""
    groups: dict[frozenset[str], list[Row]] = {}
    for row in rows:
        groups.setdefault(frozenset(row.values), []).append(row)
    return sorted(groups.values(), key=len, reverse=True)


def _is_mixed(rows: Sequence[Row], request: DataConfig) -> bool:
    """Return whether the shape is unclear only because rows have different columns.

    If False, the shape is unclear because the columns of one row can be read in several ways.
    """
    groups = _by_columns(rows)
    counts = {len(_candidates(group, list(group[0].values), request)) for group in groups}
    return max(counts) == 1


def _seen(rows: Sequence[Row], request: DataConfig) -> str:
    groups = _by_columns(rows)
    shown = "; ".join(_described(group, request) for group in groups[:NUM_GROUPS_SHOWN])
    num_more = len(groups) - NUM_GROUPS_SHOWN
    more = phrase("data.more_groups", count=num_more) if num_more > 0 else ""
    return phrase("data.shapes_of_first_rows", num_rows=len(rows), groups=shown, more=more)


def _described(rows: list[Row], request: DataConfig) -> str:
    columns = list(rows[0].values)
    names = {name for name, _, _ in _candidates(rows, columns, request)}
    is_clear = len(names) == 1
    return phrase(
        "data.rows_of_shape",
        count=len(rows),
        shape=phrase("data.of_shape", shape=names.pop())
        if is_clear
        else phrase("data.unclear_shape"),
        columns=shown(columns),
        place=f"{rows[0].source}:{rows[0].line}",
    )
