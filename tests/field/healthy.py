"""Healthy data sets and templates: what people train on every day, and nothing is wrong with.

Each entry writes NUM_ROWS rows the way real data of its kind is written, and knows what has to be
learned of them. Nothing here may be refused, set aside or warned about.
"""

import bz2
import gzip
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from PIL import Image

from tests.data.builders import CHATML, write_jsonl

NUM_ROWS = 40
NUMBERS = range(NUM_ROWS)
WORDS = ("apples", "pears", "plums", "figs", "limes", "kiwis", "melons", "dates")
SYSTEM = "You are a patient teacher."
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Say what the weather is.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city"}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True)
class Healthy:
    """One data set.

    Attributes:
        write: writes it into an empty folder; gives the path for `data.path`.
        answers: the text that is learned of each row; empty: no claim.
        template: chat template of the tokenizer; None: it has none.
        is_metaspace: the tokenizer is like Llama 2's, not of bytes.
        method: the training method; "sft" is Temper's own loop.
        settings: of the section `data`.
        num_notes: notes that are right, such as on what its template writes by itself.
        false_alarms: fields of the report that warn today and should not.
        sees: the rows hold pictures.
    """

    name: str
    write: Callable[[Path], Path]
    answers: list[str] = field(default_factory=list)
    template: str | None = CHATML
    method: str = "sft"
    settings: dict[str, Any] = field(default_factory=dict)
    num_notes: int = 0
    false_alarms: frozenset[str] = frozenset()
    sees: bool = False
    is_metaspace: bool = False


def question(n: int) -> str:
    """A different one for each number."""
    return f"Anna has {n} {WORDS[n % len(WORDS)]} and buys {n + 2} more. How many has she now?"


def answer(n: int) -> str:
    """What answers it."""
    return f"She has {2 * n + 2} {WORDS[n % len(WORDS)]}."


def user(text: str) -> dict[str, Any]:
    """What is asked."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    """What is answered."""
    return {"role": "assistant", "content": text}


def jsonl(rows: Callable[[int], Any], name: str = "train.jsonl") -> Callable[[Path], Path]:
    """Writes JSON lines."""
    return lambda folder: write_jsonl(folder / name, [rows(n) for n in NUMBERS])


def content(name: str, make: Callable[[], bytes | str]) -> Callable[[Path], Path]:
    """Writes one file."""

    def write(folder: Path) -> Path:
        given = make()
        path = folder / name
        path.write_bytes(given.encode() if isinstance(given, str) else given)
        return path

    return write


def of(
    name: str,
    rows: Callable[[int], dict[str, Any]],
    answers: Callable[[int], str] | None = answer,
    **more: Any,
) -> Healthy:
    """An entry of JSON lines."""
    learned = [answers(n) for n in NUMBERS] if answers else []
    return Healthy(name, jsonl(rows), learned, **more)


def answering(name: str, make: Callable[[int], str], **more: Any) -> Healthy:
    """Questions with answers of one kind."""
    return of(name, lambda n: {"question": question(n), "answer": make(n)}, make, **more)


def chat(n: int, *, has_system: bool = False) -> list[dict[str, Any]]:
    """Two questions with their answers."""
    turns = [user(question(n)), assistant(answer(n)), user("Why?"), assistant(why(n))]
    return [{"role": "system", "content": SYSTEM}, *turns] if has_system else turns


def why(n: int) -> str:
    """The second answer."""
    return f"Because {n} and {n + 2} are {2 * n + 2}."


def both(n: int) -> str:
    """What is learned of `chat`."""
    return answer(n) + why(n)


def sharegpt(n: int, *, has_system: bool = False) -> dict[str, Any]:
    """The same in ShareGPT's words."""
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    turns = chat(n, has_system=has_system)
    return {
        "id": f"chat_{n}",
        "conversations": [{"from": names[t["role"]], "value": t["content"]} for t in turns],
    }


def greeted(n: int) -> dict[str, Any]:
    """A chat that the assistant begins."""
    return {"messages": [assistant(f"Hello, number {n}!"), *chat(n)]}


def answers_of_greeted(n: int) -> str:
    """What is learned of `greeted`."""
    return f"Hello, number {n}!" + both(n)


QWEN_2_5, QWEN_3 = "qwen2_5", "qwen3"
INSTRUCTIONS = [
    of("Alpaca", lambda n: {"instruction": question(n), "input": "", "output": answer(n)}),
    of(
        "Alpaca with input",
        lambda n: {
            "instruction": "Answer the question.",
            "input": question(n),
            "output": answer(n),
        },
    ),
    of(
        "Alpaca, some with input",
        lambda n: {
            "instruction": question(n),
            "input": "Count slowly." if n % 3 else "",
            "output": answer(n),
        },
    ),
    of(
        "Dolly",
        lambda n: {
            "instruction": question(n),
            "context": f"Anna went to the market {n} times." if n % 2 else "",
            "response": answer(n),
            "category": "closed_qa" if n % 2 else "open_qa",
        },
    ),
    of("prompt and completion", lambda n: {"prompt": question(n), "completion": answer(n)}),
    of(
        "prompt and completion, without a template",
        lambda n: {"prompt": question(n), "completion": answer(n)},
        template=None,
    ),
    of("question and answer", lambda n: {"question": question(n), "answer": answer(n)}),
    of(
        "conversational prompt and completion",
        lambda n: {"prompt": [user(question(n))], "completion": [assistant(answer(n))]},
    ),
    of("input and output", lambda n: {"input": question(n), "output": answer(n)}),
    of(
        "OpenOrca",
        lambda n: {
            "id": f"flan.{n}",
            "system_prompt": SYSTEM,
            "question": question(n),
            "response": answer(n),
        },
    ),
    of(
        "GSM8K",
        lambda n: {
            "question": question(n),
            "answer": f"She has {n}+{n + 2}=<<{n}+{n + 2}={2 * n + 2}>>{2 * n + 2}.\n"
            f"#### {2 * n + 2}",
        },
        lambda n: f"She has {n}+{n + 2}=<<{n}+{n + 2}={2 * n + 2}>>{2 * n + 2}.\n#### {2 * n + 2}",
    ),
    of(
        "Alpaca whose input is a part of its instruction",
        lambda n: {
            "instruction": f"Double each of {n} and 5.",
            "input": f"{n}",
            "output": f"{2 * n}",
        },
        lambda n: f"{2 * n}",
    ),
    of(
        "columns that are called as settings are",
        lambda n: {
            "prompt": question(n),
            "completion": answer(n),
            "run_name": f"run {n}",
            "log_level": "info",
        },
    ),
]

CHATS = [
    of("messages", lambda n: {"messages": [user(question(n)), assistant(answer(n))]}),
    of("messages of several turns", lambda n: {"messages": chat(n)}, both),
    of(
        "messages of several turns with system",
        lambda n: {"messages": chat(n, has_system=True)},
        both,
    ),
    of("ShareGPT", sharegpt, both),
    of("ShareGPT with system", lambda n: sharegpt(n, has_system=True), both),
    of("messages that begin with a greeting", greeted, answers_of_greeted),
    of("a greeting, with a template that trims it", greeted, answers_of_greeted, template="llama3"),
    of(
        "a greeting, with a template that rewrites reasoning",
        greeted,
        None,
        template=QWEN_3,
        num_notes=1,
    ),
    of("a greeting, without a template", greeted, None, template=None),
    of(
        "OpenAI with weights, all of them 1",
        lambda n: {"messages": [user(question(n)), {**assistant(answer(n)), "weight": 1}]},
    ),
    of(
        "content in parts",
        lambda n: {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": question(n)}]},
                {"role": "assistant", "content": [{"type": "text", "text": answer(n)}]},
            ]
        },
    ),
    of(
        "messages with keys of other rows, empty",
        lambda n: {
            "messages": [
                {**user(question(n)), "name": None, "tool_calls": None},
                {**assistant(answer(n)), "name": None, "tool_calls": None},
            ],
            "tools": None,
            "id": n,
        },
    ),
    of(
        "UltraChat 200k",
        lambda n: {"prompt": question(n), "prompt_id": f"{n:064x}", "messages": chat(n)},
        both,
    ),
    of(
        "texts that repeat",
        lambda n: {
            "messages": [
                {"role": "system", "content": "user"},
                user("1"),
                assistant("1"),
                user("user"),
                assistant("assistant"),
                user(f"{n}"),
                assistant(f"{n}"),
            ]
        },
        lambda n: f"1assistant{n}",
    ),
    of(
        "system texts that are empty",
        lambda n: {
            "messages": [{"role": "system", "content": ""}, user(question(n)), assistant(answer(n))]
        },
    ),
    of(
        "white space around texts, with a template that trims them",
        lambda n: {"messages": [user(f" {question(n)}\n"), assistant(f"{answer(n)}\n\n")]},
        template="llama3",
    ),
    of(
        "messages, without a template",
        lambda n: {"messages": [user(question(n)), assistant(answer(n))]},
        template=None,
    ),
]


def tool_row(n: int, arguments: object, *, with_answer: bool = True) -> dict[str, Any]:
    """A question, a call, its result, and an answer."""
    call = {
        "id": f"call_{n}",
        "type": "function",
        "function": {"name": "get_weather", "arguments": arguments},
    }
    turns = [
        user(f"What is the weather in town {n}?"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{n}", "content": f'{{"degrees": {n}}}'},
    ]
    last = [assistant(f"It has {n} degrees there.")] if with_answer else []
    return {"messages": turns + last, "tools": [WEATHER]}


def two_calls(n: int) -> dict[str, Any]:
    """A question that needs two calls, and their results."""
    row = tool_row(n, {"city": f"town {n}"})
    call = row["messages"][1]["tool_calls"][0]
    other = {
        "id": f"second_{n}",
        "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": f"town {n + 1}"}},
    }
    result = {"role": "tool", "tool_call_id": f"second_{n}", "content": f'{{"degrees": {n}}}'}
    calls = {"role": "assistant", "content": None, "tool_calls": [call, other]}
    start, _, first, last = row["messages"]
    return {"messages": [start, calls, first, result, last], "tools": [WEATHER]}


TOOLS = [
    of(
        "calls with an object",
        lambda n: tool_row(n, {"city": f"town {n}"}),
        None,
        template=QWEN_2_5,
        num_notes=1,  # the template writes a system text of its own
        false_alarms=frozenset({"unread"}),  # the id of a call, which says nothing to a model
    ),
    of(
        "calls with JSON text, as OpenAI writes them",
        lambda n: tool_row(n, json.dumps({"city": f"town {n}"})),
        None,
        template=QWEN_2_5,
        num_notes=1,
        false_alarms=frozenset({"unread"}),
    ),
    of(
        "calls with markup, numbers and objects",
        lambda n: tool_row(
            n, {"city": f"<b>Ä & 'B' {n}</b>", "days": 1.0, "near": [n, None], "at": {"x": True}}
        ),
        None,
        template=QWEN_2_5,
        num_notes=1,
        false_alarms=frozenset({"unread"}),
    ),
    of(
        "two calls of one function in a message without a text",
        two_calls,
        None,
        template=QWEN_2_5,
        num_notes=1,
        false_alarms=frozenset({"unread"}),
    ),
    of(
        "tools that nobody calls",
        lambda n: {"messages": [user(question(n)), assistant(answer(n))], "tools": [WEATHER]},
        template=QWEN_2_5,
        num_notes=1,
    ),
]

REASONING = [
    of(
        "reasoning in tags in the last answer",
        lambda n: {
            "messages": [
                user(question(n)),
                assistant(f"<think>\n{why(n)}\n</think>\n\n{answer(n)}"),
            ]
        },
        lambda n: f"<think>\n{why(n)}\n</think>\n\n{answer(n)}",
        template=QWEN_3,
        num_notes=1,  # its training template
    ),
    of(
        "reasoning in a key of its own in the last answer",
        lambda n: {
            "messages": [user(question(n)), {**assistant(answer(n)), "reasoning_content": why(n)}]
        },
        lambda n: f"<think>\n{why(n)}\n</think>\n\n{answer(n)}",
        template=QWEN_3,
        num_notes=1,
    ),
    of(
        "reasoning as plain text",
        lambda n: {
            "prompt": question(n),
            "completion": f"<think>\n{why(n)}\n</think>\n\n{answer(n)}",
        },
        lambda n: f"<think>\n{why(n)}\n</think>\n\n{answer(n)}",
    ),
]

CODE = "def total_{n}(items):\n    total = {n}\n    for item in items:\n        total += item\n"
ANSWERS = [
    answering("code with indentation", lambda n: CODE.format(n=n) + "    return total"),
    answering("code with tabs", lambda n: f"for (;;) {{\n\tif (x == {n})\n\t\tbreak;\n}}"),
    answering("code in a fence", lambda n: f"```python\n{CODE.format(n=n)}    return 0\n```"),
    answering("Chinese", lambda n: f"安娜现在有{2 * n + 2}个苹果。"),
    answering("Arabic", lambda n: f"لدى آنا الآن {2 * n + 2} تفاحة."),
    answering("Hindi", lambda n: f"अन्ना के पास अब {2 * n + 2} सेब हैं।"),
    answering("emoji", lambda n: f"🍎 × {2 * n + 2} 👩‍👩‍👧 🇩🇪 👍🏽"),
    answering("German and Vietnamese", lambda n: f"Ähren, Straße, Tiếng Việt {n}"),
    answering("decomposed letters", lambda n: f"Cafe\N{COMBINING ACUTE ACCENT} no. {n}"),
    answering("full-width letters", lambda n: f"Ａｎｎａ has {n} ½ ﬁgs…"),
    answering("Markdown", lambda n: f"# Answer {n}\n\n- **{n}** and\n- *{n + 2}*\n\n> so it is\n"),
    answering("Markdown table", lambda n: f"| a | b |\n| --- | --- |\n| {n} | {n + 2} |"),
    answering("LaTeX", lambda n: rf"$$\frac{{{n}}}{{2}} + \sqrt{{{n}}}$$ so \boxed{{{n}}}"),
    answering("HTML", lambda n: f'<p class="a">{n} &amp; {n + 2}</p>\n<br/>\n<b>no</b>'),
    answering("JSON", lambda n: json.dumps({"total": 2 * n + 2, "items": [n, n + 2], "ok": None})),
    answering("JSON over lines", lambda n: json.dumps({"total": n, "list": [n]}, indent=2)),
    answering("XML and templates", lambda n: f"<a>{{{{ x }}}} {{% if y %}}{n}{{% endif %}}</a>"),
    answering("SQL", lambda n: f"SELECT \"name\" FROM t WHERE id = {n} AND note = 'it''s';"),
    answering("shell flags", lambda n: f"Pass --lr 0.{n} and set training.seed = {n}; -h helps"),
    answering("paths and addresses", lambda n: rf"C:\new\table{n}.txt https://a.org/?q={n}&x=1#y"),
    answering(
        "the words that spell nothing", lambda n: ("null", "None", "NA", "nan", "N/A")[n % 5]
    ),
    answering("yes and no", lambda n: ("Yes", "No")[n % 2]),
    answering("one letter", lambda n: "ABCD"[n % 4]),
    answering("bare numbers as text", lambda n: str(2 * n + 2)),
    answering("white space at the start", lambda n: f"    return {n}"),
    answering("white space at the end", lambda n: f"The list:\n- {n}\n"),
    answering("runs of spaces", lambda n: f"a    b{' ' * (n % 7)}c   {n}"),
    answering("Windows line ends", lambda n: f"first {n}\r\nsecond\r\nthird"),
    answering("line separators", lambda n: f"first {n}\u2028second\u2029third\x85fourth"),
    answering("quotes of all kinds", lambda n: f'"{n}" \'b\' “c” «d» `e` \\"f\\"'),
    answering("a sum in chains of thought", lambda n: f"Step 1: {n}\nStep 2: +2\n\nSo: {n + 2}"),
]

ROUND_TRIPS = (
    "Chinese",
    "emoji",
    "code with indentation",
    "JSON over lines",
    "one letter",
    "LaTeX",
)
METASPACE = [
    Healthy(f"{e.name}, Llama 2's kind of tokenizer", e.write, e.answers, is_metaspace=True)
    for e in ANSWERS
    if e.name in ROUND_TRIPS
]


def squad(n: int) -> dict[str, Any]:
    """A row of rajpurkar/squad."""
    text = f"{n} apples"
    context = f"Anna has {text} in her basket."
    return {
        "id": f"{n:024x}",
        "title": "Anna",
        "context": context,
        "question": f"How many apples has Anna on day {n}?",
        "answers": {"text": [text, text], "answer_start": [9, 9]},
    }


KINDS = [
    of("SQuAD", squad, lambda n: f"{n} apples"),
    of(
        "MMLU",
        lambda n: {
            "question": question(n),
            "subject": "arithmetic",
            "choices": [str(2 * n + 2 + k) for k in range(4)],
            "answer": 0,
        },
        None,
    ),
    of(
        "ARC",
        lambda n: {
            "id": f"q{n}",
            "question": question(n),
            "choices": {"text": [f"{2 * n + k}" for k in range(4)], "label": ["A", "B", "C", "D"]},
            "answerKey": "C",
        },
        None,
    ),
    of(
        "translations",
        lambda n: {"translation": {"de": f"Anna hat {n} Äpfel.", "en": f"Anna has {n} apples."}},
        lambda n: f"Anna has {n} apples.",
        settings={"prompt_column": "translation.de", "answer_column": "translation.en"},
    ),
    of(
        "summaries",
        lambda n: {
            "id": str(n),
            "article": f"Anna went to market {n}. " * 4,
            "highlights": f"Market {n}.",
        },
        lambda n: f"Market {n}.",
    ),
    of(
        "texts of a column",
        lambda n: {"text": f"{question(n)} {answer(n)}", "url": f"https://a.org/{n}", "id": str(n)},
        None,
    ),
    of(
        "reviews with sentiments",
        lambda n: {
            "review": f"I bought {n} of them. {'Great' if n % 2 else 'Bad'}!",
            "sentiment": "positive" if n % 2 else "negative",
        },
        None,
        settings={"prompt_column": "review", "answer_column": "sentiment"},
    ),
]


def table(separator: str, quote: str = "", end: str = "\n") -> str:
    """Questions and answers as a table of text."""
    rows = [("question", "answer"), *((question(n), answer(n)) for n in NUMBERS)]
    return "".join(separator.join(f"{quote}{c}{quote}" for c in row) + end for row in rows)


def quoted_lines() -> str:
    """A CSV in which most cells span lines, hold commas, and hold doubled quotes."""
    rows = [f'"{question(n)}\nSay ""please"", {n}.","First,\n{answer(n)}"\n' for n in NUMBERS]
    return "question,answer\n" + "".join(rows)


def some_quoted_lines() -> str:
    """A CSV of which a few cells span a few lines, and one spans many."""
    rows = []
    for n in NUMBERS:
        num_lines = 14 if n == 7 else 3 if n % 8 == 3 else 1
        rows.append(f'{question(n)},"{poem(n, num_lines)}"\n')
    return "question,answer\n" + "".join(rows)


def poem(n: int, num_lines: int) -> str:
    """Lines of an answer."""
    return "\n".join(f"{answer(n)} {line}" for line in range(num_lines))


def rows_of_pairs() -> list[dict[str, Any]]:
    """Questions with answers."""
    return [{"question": question(n), "answer": answer(n)} for n in NUMBERS]


def lines() -> bytes:
    """The same as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows_of_pairs()).encode()


def zipped() -> bytes:
    """The same in an archive."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("train.jsonl", lines())
    return held.getvalue()


def tables(name: str, make: Callable[[], bytes | str], **more: Any) -> Healthy:
    """An entry of one file of questions and answers."""
    return Healthy(more.pop("title"), content(name, make), [answer(n) for n in NUMBERS], **more)


def paragraphs(folder: Path) -> Path:
    """A folder of notes."""
    for n in range(4):
        text = "\n\n".join(f"{question(k)} {answer(k)}" for k in NUMBERS if k % 4 == n)
        (folder / f"note_{n}.txt").write_text(text + "\n")
    return folder


def workbook(folder: Path) -> Path:
    """An Excel workbook with numbers and dates beside the texts."""
    import openpyxl

    book = openpyxl.Workbook()
    rows = ([question(n), 2 * n + 2, TIMES[n].replace(tzinfo=None), n / 4] for n in NUMBERS)
    for row in [["question", "answer", "asked on", "score"], *rows]:
        book.active.append(row)
    book.save(folder / "train.xlsx")
    return folder / "train.xlsx"


def parquet(folder: Path, name: str = "train.parquet", **columns: Any) -> Path:
    """A Parquet file with further columns."""
    import datasets

    rows = {
        "question": [question(n) for n in NUMBERS],
        "answer": [answer(n) for n in NUMBERS],
        **columns,
    }
    features = datasets.Dataset.from_dict(rows)
    features.to_parquet(str(folder / name))
    return folder / name


def with_classes(folder: Path) -> Path:
    """A Parquet file with the classes of its rows beside the answers."""
    import datasets

    rows = datasets.Dataset.from_list([{**row, "label": 0} for row in rows_of_pairs()])
    rows = rows.cast_column("label", datasets.ClassLabel(names=["easy", "hard"]))
    rows.to_parquet(str(folder / "train.parquet"))
    return folder / "train.parquet"


def snapshot(folder: Path) -> Path:
    """What a download of a data set of the Hub leaves, in two shards of one split."""
    import datasets

    (folder / "data").mkdir()
    rows = datasets.Dataset.from_list(rows_of_pairs())
    for shard in range(2):
        name = f"train-{shard:05d}-of-00002.parquet"
        rows.shard(2, shard, contiguous=True).to_parquet(str(folder / "data" / name))
    card = "---\nlicense: mit\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n"
    (folder / "README.md").write_text(card + "    path: data/train-*\n---\n\n# Sums\n")
    (folder / ".gitattributes").write_text("*.parquet filter=lfs diff=lfs merge=lfs -text\n")
    return folder


def shards(folder: Path) -> Path:
    """Lines in several files."""
    for shard in range(3):
        rows = rows_of_pairs()[shard::3]
        write_jsonl(folder / f"part-{shard:05d}.jsonl", rows)
    return folder


def two_files(folder: Path) -> Path:
    """Rows to train on beside held-out ones, which the settings name."""
    write_jsonl(folder / "validation.jsonl", [{"question": "And 99?", "answer": "It is 99."}])
    return write_jsonl(folder / "train.jsonl", rows_of_pairs())


TIMES = [datetime(2026, 1, 1 + n % 28, n % 24, tzinfo=UTC) for n in NUMBERS]
FILES = [
    tables("train.csv", lambda: table(","), title="CSV"),
    tables("train.csv", lambda: "\N{BOM}" + table(";", end="\r\n"), title="CSV from Excel"),
    tables("train.csv", lambda: table(";", '"'), title="CSV with quotes and semicolons"),
    tables("train.tsv", lambda: table("\t"), title="TSV"),
    tables("train.csv", lambda: table(",", end="\r\n"), title="CSV with Windows line ends"),
    tables("train.csv", lambda: table(",").rstrip("\n"), title="CSV without a last line end"),
    Healthy(
        "CSV of cells that span lines",
        content("train.csv", quoted_lines),
        [f"First,\n{answer(n)}" for n in NUMBERS],
    ),
    Healthy(
        "CSV of which some cells span lines",
        content("train.csv", some_quoted_lines),
        [poem(n, 14 if n == 7 else 3 if n % 8 == 3 else 1) for n in NUMBERS],
    ),
    Healthy(
        "CSV with inches and apostrophes",
        content(
            "train.csv",
            lambda: (
                "question,answer\n"
                + "".join(f'Is it {n} long?,"It\'s {n}"" and 5\' wide"\n' for n in NUMBERS)
            ),
        ),
        [f"It's {n}\" and 5' wide" for n in NUMBERS],
    ),
    Healthy(
        "CSV with numbers",
        content(
            "train.csv",
            lambda: "question,answer\n" + "".join(f"{question(n)},{2 * n + 2}\n" for n in NUMBERS),
        ),
        [str(2 * n + 2) for n in NUMBERS],
    ),
    tables("train.json", lambda: json.dumps(rows_of_pairs()), title="JSON list"),
    tables("train.json", lambda: json.dumps(rows_of_pairs(), indent=2), title="JSON, indented"),
    tables("train.jsonl", lines, title="JSON lines"),
    tables("train.jsonl", lambda: lines().replace(b"\n", b"\r\n"), title="JSON lines of Windows"),
    tables("train.jsonl", lambda: b"\xef\xbb\xbf" + lines(), title="JSON lines with a mark"),
    tables("train.jsonl.gz", lambda: gzip.compress(lines()), title="gzip"),
    tables("train.jsonl.bz2", lambda: bz2.compress(lines()), title="bzip2"),
    tables("train.zip", zipped, title="zip"),
    Healthy("Excel workbook", workbook, [str(2 * n + 2) for n in NUMBERS]),
    Healthy("folder of shards", shards, [answer(n) for n in NUMBERS]),
    Healthy("folder of notes", paragraphs),
    Healthy(
        "snapshot of the Hub",
        snapshot,
        [answer(n) for n in NUMBERS],
        false_alarms=frozenset({"notes"}),  # that its card is left out
    ),
    Healthy(
        "held-out data of its own",
        two_files,
        [*(answer(n) for n in NUMBERS), "It is 99."],
        settings={"eval_path": "validation.jsonl", "validation_split": 0.0},
    ),
    Healthy("Parquet", parquet, [answer(n) for n in NUMBERS]),
    Healthy(
        "Parquet with numbers, times, lists and objects",
        lambda folder: parquet(
            folder,
            id=[*NUMBERS],
            score=[n / 3 for n in NUMBERS],
            created=TIMES,
            day=[time.date() for time in TIMES],
            tags=[["sum", f"n{n}"] for n in NUMBERS],
            source=[{"name": "a", "page": n} for n in NUMBERS],
            is_checked=[n % 2 == 0 for n in NUMBERS],
            digest=[bytes([n]) for n in NUMBERS],
        ),
        [answer(n) for n in NUMBERS],
    ),
    Healthy("Parquet with classes beside the answers", with_classes, [answer(n) for n in NUMBERS]),
]


def pairs(n: int) -> tuple[str, str]:
    """A better and a worse answer."""
    return answer(n), f"She has {2 * n + 3} {WORDS[n % len(WORDS)]}."


def explicit(n: int) -> dict[str, Any]:
    better, worse = pairs(n)
    return {"prompt": question(n), "chosen": better, "rejected": worse}


def implicit(n: int) -> dict[str, Any]:
    better, worse = pairs(n)
    first = user(question(n))
    return {"chosen": [first, assistant(better)], "rejected": [first, assistant(worse)]}


def conversational(n: int) -> dict[str, Any]:
    better, worse = pairs(n)
    prompt = [{"role": "system", "content": SYSTEM}, user(question(n))]
    return {"prompt": prompt, "chosen": [assistant(better)], "rejected": [assistant(worse)]}


def ultrafeedback(n: int) -> dict[str, Any]:
    better, worse = pairs(n)
    return {
        "prompt": question(n),
        "prompt_id": f"{n:064x}",
        "chosen": [user(question(n)), assistant(better)],
        "rejected": [user(question(n)), assistant(worse)],
        "messages": [user(question(n)), assistant(better)],
        "score_chosen": 8.0,
        "score_rejected": 3.5,
    }


def judged(n: int) -> dict[str, Any]:
    return {"prompt": question(n), "completion": pairs(n)[n % 2], "label": n % 2 == 0}


def judged_by_numbers(n: int) -> dict[str, Any]:
    return {**judged(n), "label": 1 - n % 2}


def judged_chat(n: int) -> dict[str, Any]:
    return {
        "prompt": [user(question(n))],
        "completion": [assistant(pairs(n)[n % 2])],
        "label": n % 2 == 0,
    }


def with_answer(n: int) -> dict[str, Any]:
    return {"prompt": question(n), "answer": str(2 * n + 2)}


def math_prompt(n: int) -> dict[str, Any]:
    return {"prompt": [user(question(n))], "solution": rf"$\boxed{{{2 * n + 2}}}$", "id": n}


def prompt_alone(n: int) -> dict[str, Any]:
    return {"prompt": question(n)}


GSM8K = next(entry for entry in INSTRUCTIONS if entry.name == "GSM8K")
BY_METHOD: dict[str, dict[str, Callable[[int], dict[str, Any]]]] = {
    "dpo": {
        "pairs": explicit,
        "pairs whose prompt is in both": implicit,
        "pairs of messages with system": conversational,
        "UltraFeedback": ultrafeedback,
    },
    "orpo": {"pairs": explicit, "pairs whose prompt is in both": implicit},
    "reward": {"pairs": explicit, "pairs of messages with system": conversational},
    "kto": {
        "judged answers": judged,
        "judged by 1 and 0": judged_by_numbers,
        "judged messages": judged_chat,
        "pairs": explicit,
    },
    "grpo": {
        "prompts with answers": with_answer,
        "prompts with solutions": math_prompt,
        "prompts alone": prompt_alone,
    },
    "rloo": {"prompts with answers": with_answer, "prompts alone": prompt_alone},
    "distillation": {"prompts with answers": with_answer, "prompts alone": prompt_alone},
}
METHODS = [
    Healthy(f"{method}, {name}", jsonl(rows), method=method)
    for method, kinds in BY_METHOD.items()
    for name, rows in kinds.items()
] + [
    Healthy("dpo, pairs without a template", jsonl(explicit), method="dpo", template=None),
    Healthy("grpo, GSM8K", GSM8K.write, method="grpo"),
    Healthy(
        "dpo, pairs with Qwen 2.5's template", jsonl(implicit), method="dpo", template=QWEN_2_5
    ),
    Healthy("kto, Llama 3's template", jsonl(judged_chat), method="kto", template="llama3"),
]


def image(n: int) -> Image.Image:
    """One colour, another for each number."""
    return Image.new("RGB", (20, 18), (6 * n, 255 - 6 * n, (53 * n) % 256))


def orientation(number: int) -> bytes:
    """What a camera writes of how it was held."""
    exif = Image.Exif()
    exif[0x0112] = number
    return exif.tobytes()


def pictured(
    suffix: str, change: Callable[[Image.Image], Image.Image] = lambda i: i, **save: Any
) -> Callable[[Path], Path]:
    """Rows that ask about a picture in a file beside them."""

    def write(folder: Path) -> Path:
        (folder / "pictures").mkdir()
        rows = []
        for n in NUMBERS:
            name = f"pictures/{n}.{suffix}"
            change(image(n)).save(folder / name, **save)
            rows.append({"image": name, "question": "Which one is it?", "answer": f"number {n}"})
        return write_jsonl(folder / "train.jsonl", rows)

    return write


def in_messages(folder: Path) -> Path:
    """Pictures as parts of messages."""
    (folder / "pictures").mkdir()
    rows = []
    for n in NUMBERS:
        image(n).save(folder / f"pictures/{n}.png")
        parts = [{"type": "image"}, {"type": "text", "text": "Which one is it?"}]
        turns = [{"role": "user", "content": parts}, assistant(f"number {n}")]
        rows.append({"images": [f"pictures/{n}.png"], "messages": turns})
    return write_jsonl(folder / "train.jsonl", rows)


SEEN = [f"number {n}" for n in NUMBERS]
PICTURES = [
    Healthy(name, write, SEEN, template="", sees=True)
    for name, write in {
        "PNG": pictured("png"),
        "JPEG": pictured("jpg", quality=90),
        "WebP": pictured("webp", lossless=True),
        "BMP": pictured("bmp"),
        "grey PNG": pictured("png", lambda i: i.convert("L")),
        "black and white PNG": pictured("png", lambda i: i.convert("1")),
        "opaque RGBA PNG": pictured("png", lambda i: i.convert("RGBA")),
        "GIF of one frame": pictured("gif"),
        "photos held upright": pictured("jpg", exif=orientation(1)),
        "photos held sideways": pictured("jpg", exif=orientation(6)),
        "PNG with a palette": pictured("png", lambda i: i.convert("P")),
        "pictures in messages": in_messages,
    }.items()
]


def templates() -> Iterator[Healthy]:
    """The chat templates of models in use, with chats of the kind that each is made for."""
    notes = {"llama3_2": 2, "gptoss": 3}  # the date, a system text, the training template
    notes |= dict.fromkeys(("cohere2", "glm4moe", "phi3_5", "phi3"), 1)
    notes |= dict.fromkeys(("llama3_1", "qwen2_5", "qwen3", "nemotron_3_nano"), 1)
    learns_marks = ("glm4moe", "qwen3", "gptoss", "nemotron_3_nano")  # of empty reasoning
    families = ("cohere", "cohere2", "glm4moe", "llama3", "llama3_1", "llama3_2", "phi3_5", "lfm2")
    for family in (
        *families,
        "qwen2_5",
        "qwen3",
        "qwen3_instruct_2507",
        "gptoss",
        "nemotron_3_nano",
    ):
        yield of(
            f"{family}, several turns with system",
            lambda n: {"messages": chat(n, has_system=True)},
            None if family in learns_marks else both,
            template=family,
            settings={"max_length": 4096},
            num_notes=notes.get(family, 0),
        )
    for family in ("gemma", "gemma3", "phi3"):
        yield of(
            f"{family}, several turns",
            lambda n: {"messages": chat(n)},
            both,
            template=family,
            num_notes=notes.get(family, 0),
        )


HEALTHY = [
    *INSTRUCTIONS,
    *CHATS,
    *TOOLS,
    *REASONING,
    *ANSWERS,
    *METASPACE,
    *KINDS,
    *FILES,
    *METHODS,
    *PICTURES,
    *templates(),
]
