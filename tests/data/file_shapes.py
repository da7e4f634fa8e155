"""Files as people have them: a table of shapes, where each comes from, and what becomes of it.

Every file is a small one of its kind, with the columns and the nesting of the real one. `gives` is
what is learnt of its first row: the shape, what is asked last, the answer. `words` are some of the
sentence in which it is refused.
"""

import bz2
import codecs
import gzip
import io
import json
import lzma
import zipfile
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import zstandard

Content = bytes | str | list[Any] | dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """One kind of file.

    Attributes:
        source: who has or wants files like this.
        file: its name; one that ends in "/" is a folder, and `content` its files.
        content: bytes, text, rows of JSON lines (a list) in a ".jsonl", or any JSON elsewhere.
        gives: (shape, the last question, the answer), or None where it is refused.
        words: some of the refusal, or of the reason, the notes and the first row set aside.
        num_rows: how many can be learnt.
        settings: flags that answer what is not clear.
    """

    name: str
    source: str
    file: str
    content: Content
    gives: tuple[str, str, str] | None = None
    words: str = ""
    num_rows: int = 2
    settings: dict[str, Any] = field(default_factory=dict)


Q, A = "How many?", "Three."
CHAT = [{"role": "user", "content": Q}, {"role": "assistant", "content": A}]
SHAREGPT = [{"from": "human", "value": Q}, {"from": "gpt", "value": A}]
PROMPT_TURNS = [{"role": "user", "content": Q}]
ANSWER_TURNS = [{"role": "assistant", "content": A}]
WORSE = [{"role": "assistant", "content": "Four."}]
CONTEXT = "Anna has three apples."


def two(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Two rows of a kind."""
    return [row, dict(row)]


def lines(row: dict[str, Any]) -> bytes:
    """The same as JSON lines."""
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in two(row)).encode()


PAIR = {"prompt": Q, "completion": A}
QA = {"question": Q, "answer": A}
PROMPT_GIVES = ("prompt", Q, A)
QA_GIVES = ("qa", Q, A)
MESSAGES_GIVES = ("messages", Q, A)
BELOW = f"{Q}\n\n{CONTEXT}"


def rows(name: str, source: str, row: dict[str, Any], gives: Any = None, words: str = "") -> Shape:
    """A kind of JSON lines."""
    return Shape(name, source, "rows.jsonl", two(row), gives, words)


def zipped(files: dict[str, bytes]) -> bytes:
    """A zip archive."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return held.getvalue()


MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
SHEETS = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def sheet(rows: list[list[str]]) -> bytes:
    """An Excel workbook with one sheet, as small as one can be."""
    cells = "".join(
        f"<row r='{n}'>"
        + "".join(f"<c t='inlineStr'><is><t>{escape(text)}</t></is></c>" for text in row)
        + "</row>"
        for n, row in enumerate(rows, 1)
    )
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006/relationships"
    files = {
        "[Content_Types].xml": "<Types xmlns='http://schemas.openxmlformats.org/package/2006/"
        "content-types'><Default Extension='rels' ContentType='application/vnd.openxmlformats-"
        "package.relationships+xml'/><Default Extension='xml' ContentType='application/xml'/>"
        f"<Override PartName='/xl/workbook.xml' ContentType='{SHEETS}.sheet.main+xml'/>"
        f"<Override PartName='/xl/worksheets/sheet1.xml' ContentType='{SHEETS}.worksheet+xml'/>"
        "</Types>",
        "_rels/.rels": f"<Relationships xmlns='{package}'><Relationship Id='r1' Type='{office}/"
        "officeDocument' Target='xl/workbook.xml'/></Relationships>",
        "xl/workbook.xml": f"<workbook xmlns='{MAIN}' xmlns:r='{office}'><sheets><sheet name='S'"
        " sheetId='1' r:id='r1'/></sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f"<Relationships xmlns='{package}'><Relationship Id='r1'"
        f" Type='{office}/worksheet' Target='worksheets/sheet1.xml'/></Relationships>",
        "xl/worksheets/sheet1.xml": f"<worksheet xmlns='{MAIN}'><sheetData>{cells}</sheetData>"
        "</worksheet>",
    }
    return zipped({name: text.encode() for name, text in files.items()})


INSTRUCTIONS = [
    rows(
        "Alpaca", "tatsu-lab/alpaca", {"instruction": Q, "input": "", "output": A}, ("alpaca", Q, A)
    ),
    rows(
        "Alpaca with input",
        "yahma/alpaca-cleaned",
        {"instruction": Q, "input": CONTEXT, "output": A},
        ("alpaca", BELOW, A),
    ),
    rows(
        "Alpaca with its text",
        "tatsu-lab/alpaca (parquet)",
        {"instruction": Q, "input": "", "output": A, "text": "Below is an instruction"},
        ("alpaca", Q, A),
    ),
    rows(
        "Alpaca with history",
        "LLaMA-Factory, data/README.md",
        {
            "instruction": Q,
            "input": "",
            "output": A,
            "system": "Be brief.",
            "history": [["Hello", "Hi!"]],
        },
        ("alpaca", Q, A),
        "data.recognized_history(column=history)",
    ),
    rows(
        "Dolly",
        "databricks/databricks-dolly-15k",
        {"instruction": Q, "context": CONTEXT, "response": A, "category": "qa"},
        ("alpaca", BELOW, A),
    ),
    rows(
        "GPTeacher",
        "Axolotl, type: gpteacher",
        {"instruction": Q, "input": "", "response": A},
        ("alpaca", Q, A),
    ),
    rows(
        "OASST of Axolotl",
        "Axolotl, type: oasst",
        {"INSTRUCTION": Q, "RESPONSE": A},
        ("alpaca", Q, A),
    ),
    rows(
        "OpenOrca",
        "Open-Orca/OpenOrca",
        {"id": "1", "system_prompt": "Be brief.", "question": Q, "response": A},
        QA_GIVES,
    ),
    rows("Metharme", "Axolotl, type: metharme", {"prompt": Q, "generation": A}, PROMPT_GIVES),
    rows(
        "Camel",
        "camel-ai/math",
        {"role_1": "x", "topic": "y", "message_1": Q, "message_2": A},
        ("prompt", Q, A),
    ),
    rows("prompt and completion", "OpenAI's legacy fine-tuning; TRL", PAIR, PROMPT_GIVES),
    rows(
        "conversational prompt and completion",
        "TRL, dataset_formats",
        {"prompt": PROMPT_TURNS, "completion": ANSWER_TURNS},
        PROMPT_GIVES,
    ),
    rows(
        "input and output",
        "many; Vertex PaLM without its prefix",
        {"input": Q, "output": A},
        PROMPT_GIVES,
    ),
    rows(
        "input_text and output_text",
        "Vertex AI, text-bison tuning",
        {"input_text": Q, "output_text": A},
        PROMPT_GIVES,
    ),
    rows("source and target", "seq2seq examples; flores", {"source": Q, "target": A}, PROMPT_GIVES),
    rows(
        "inputs and targets",
        "FLAN, P3: inputs and targets",
        {"inputs": Q, "targets": A, "task": "x"},
        PROMPT_GIVES,
    ),
    rows("user and assistant", "exports of chat logs", {"user": Q, "assistant": A}, PROMPT_GIVES),
    rows("human and assistant", "exports of chat logs", {"Human": Q, "Assistant": A}, PROMPT_GIVES),
    rows(
        "context and response",
        "Persona-Chat-like pairs; Kaggle mental-health counselling",
        {"Context": Q, "Response": A},
        PROMPT_GIVES,
    ),
    rows("front and back", "Anki cards with a header", {"Front": Q, "Back": A}, PROMPT_GIVES),
    rows(
        "Jeopardy",
        "Axolotl, type: jeopardy",
        {"question": Q, "answer": A, "category": "x"},
        QA_GIVES,
    ),
    rows("Q and A", "FAQ lists", {"Q": Q, "A": A}, QA_GIVES),
    rows(
        "GSM8K",
        "openai/gsm8k",
        {"question": Q, "answer": "1+2=<<1+2=3>>3\n#### 3"},
        ("qa", Q, "1+2=<<1+2=3>>3\n#### 3"),
    ),
    rows(
        "problem and solution",
        "MATH (hendrycks)",
        {"problem": Q, "level": "1", "type": "x", "solution": A},
        QA_GIVES,
    ),
    rows(
        "OpenMathInstruct",
        "nvidia/OpenMathInstruct-1",
        {"question": Q, "generated_solution": A, "expected_answer": "3"},
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), "
            "columns=question, generated_solution, expected_answer, hint=, "
            "advice=data.set_columns())"
        ),
    ),
    rows(
        "CNN/DailyMail",
        "abisee/cnn_dailymail",
        {"article": CONTEXT, "highlights": A, "id": "1"},
        ("prompt", CONTEXT, A),
    ),
    rows(
        "XSum",
        "EdinburghNLP/xsum",
        {"document": CONTEXT, "summary": A, "id": "1"},
        ("prompt", CONTEXT, A),
    ),
    rows(
        "SAMSum",
        "Samsung/samsum",
        {"id": "1", "dialogue": CONTEXT, "summary": A},
        ("prompt", CONTEXT, A),
    ),
    rows(
        "text and summary",
        "billsum",
        {"text": CONTEXT, "summary": A, "title": "x"},
        ("prompt", CONTEXT, A),
    ),
    rows(
        "TL;DR",
        "Axolotl, type: summarizetldr",
        {"article": CONTEXT, "summary": A},
        ("prompt", CONTEXT, A),
    ),
]
LANGUAGES = [
    rows("German", "CSV of an office: Frage, Antwort", {"Frage": Q, "Antwort": A}, QA_GIVES),
    rows("French", "question, réponse", {"question": Q, "réponse": A}, QA_GIVES),
    rows("Spanish", "pregunta, respuesta", {"Pregunta": Q, "Respuesta": A}, QA_GIVES),
    rows("Italian", "domanda, risposta", {"domanda": Q, "risposta": A}, QA_GIVES),
    rows("Portuguese", "pergunta, resposta", {"pergunta": Q, "resposta": A}, QA_GIVES),
    rows("Dutch", "vraag, antwoord", {"vraag": Q, "antwoord": A}, QA_GIVES),
    rows("Polish", "pytanie, odpowiedź", {"pytanie": Q, "odpowiedź": A}, QA_GIVES),
    rows("Russian", "вопрос, ответ", {"вопрос": Q, "ответ": A}, QA_GIVES),
    rows("Turkish", "soru, cevap", {"soru": Q, "cevap": A}, QA_GIVES),
    rows("Arabic", "السؤال, الجواب", {"السؤال": Q, "الجواب": A}, QA_GIVES),
    rows("Hindi", "प्रश्न, उत्तर", {"प्रश्न": Q, "उत्तर": A}, QA_GIVES),
    rows("Chinese", "问题, 答案", {"问题": Q, "答案": A}, QA_GIVES),
    rows(
        "Chinese instructions",
        "指令, 输入, 输出",
        {"指令": Q, "输入": CONTEXT, "输出": A},
        ("alpaca", BELOW, A),
    ),
    rows("Japanese", "質問, 回答", {"質問": Q, "回答": A}, QA_GIVES),
    rows("Korean", "질문, 답변", {"질문": Q, "답변": A}, QA_GIVES),
    Shape(
        "Swahili",
        "a language that is not guessed",
        "rows.jsonl",
        two({"swali": Q, "jibu": A}),
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), columns=swali, "
            "jibu, hint=, advice=data.set_prompt_and_answer(first=swali, "
            "second=jibu))"
        ),
    ),
    Shape(
        "Swahili by flag",
        "the same, told",
        "rows.jsonl",
        two({"swali": Q, "jibu": A}),
        PROMPT_GIVES,
        settings={"prompt_column": "swali", "answer_column": "jibu"},
    ),
]
CHATS = [
    rows(
        "OpenAI chats",
        "OpenAI fine-tuning; Mistral; Together",
        {"messages": [{"role": "system", "content": "Be brief."}, *CHAT]},
        MESSAGES_GIVES,
    ),
    rows(
        "OpenAI with weights",
        "OpenAI fine-tuning, weight",
        {"messages": [*CHAT, PROMPT_TURNS[0], {**WORSE[0], "weight": 0}]},
        MESSAGES_GIVES,
    ),
    rows(
        "OpenAI tools",
        "OpenAI function calling",
        {
            "messages": CHAT,
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "parallel_tool_calls": False,
        },
        MESSAGES_GIVES,
    ),
    rows(
        "Azure and Bedrock parts",
        "Amazon Bedrock: Nova, content in parts",
        {
            "schemaVersion": "x",
            "system": [{"text": "Be brief."}],
            "messages": [
                {"role": "user", "content": [{"text": Q}]},
                {"role": "assistant", "content": [{"text": A}]},
            ],
        },
        MESSAGES_GIVES,
    ),
    rows(
        "Cohere chats",
        "Cohere fine-tuning: Chatbot",
        {"messages": [{"role": "User", "content": Q}, {"role": "Chatbot", "content": A}]},
        MESSAGES_GIVES,
    ),
    rows(
        "Gemini",
        "Vertex AI, Gemini tuning: contents and parts",
        {
            "systemInstruction": {"role": "system", "parts": [{"text": "Be brief."}]},
            "contents": [
                {"role": "user", "parts": [{"text": Q}]},
                {"role": "model", "parts": [{"text": A}]},
            ],
        },
        MESSAGES_GIVES,
    ),
    rows(
        "PaLM chats",
        "Vertex AI, chat-bison: author",
        {
            "context": "Be brief.",
            "messages": [{"author": "user", "content": Q}, {"author": "assistant", "content": A}],
        },
        MESSAGES_GIVES,
    ),
    rows(
        "ShareGPT",
        "anon8231489123/ShareGPT_Vicuna",
        {"id": "1", "conversations": SHAREGPT},
        ("sharegpt", Q, A),
    ),
    rows(
        "ShareGPT with tools",
        "LLaMA-Factory: system and tools",
        {"conversations": SHAREGPT, "system": "Be brief.", "tools": "[]"},
        ("sharegpt", Q, A),
    ),
    rows(
        "Pygmalion",
        "Axolotl, type: pygmalion",
        {"conversations": [{"role": "user", "value": Q}, {"role": "assistant", "value": A}]},
        MESSAGES_GIVES,
    ),
    rows(
        "UltraChat 200k",
        "HuggingFaceH4/ultrachat_200k",
        {"prompt": Q, "prompt_id": "1", "messages": CHAT},
        MESSAGES_GIVES,
    ),
    rows(
        "UltraChat",
        "stingning/ultrachat: texts by turns",
        {"id": "1", "data": [Q, A]},
        MESSAGES_GIVES,
        "data.recognized_turns(column=data)",
    ),
    rows(
        "DailyDialog",
        "li2017dailydialog: dialog lists texts",
        {"dialog": [Q, A], "act": [1, 1]},
        MESSAGES_GIVES,
        "data.recognized_turns(column=dialog)",
    ),
    rows(
        "Tulu",
        "allenai/tulu-3-sft-mixture",
        {"id": "1", "messages": CHAT, "source": "x"},
        MESSAGES_GIVES,
    ),
    rows(
        "OASST",
        "OpenAssistant/oasst1: one message a row",
        {"message_id": "1", "parent_id": None, "text": Q, "role": "prompter", "lang": "en"},
        None,
        "data.one_message_per_row()",
    ),
    rows(
        "OASST trees",
        "OpenAssistant, trees.jsonl",
        {
            "message_tree_id": "1",
            "prompt": {
                "text": Q,
                "role": "prompter",
                "replies": [{"text": A, "role": "assistant", "replies": []}],
            },
        },
        None,
        "data.message_trees()",
    ),
    Shape(
        "ChatGPT export",
        "ChatGPT, conversations.json",
        "conversations.json",
        two(
            {"title": "x", "mapping": {"a": {"message": None, "children": []}}, "current_node": "a"}
        ),
        None,
        "data.message_trees()",
    ),
    rows(
        "Guanaco",
        "timdettmers/openassistant-guanaco: ### Human",
        {"text": f"### Human: {Q}### Assistant: {A}"},
        ("text", "", f"### Human: {Q}### Assistant: {A}"),
        "data.text_holds_formatted_chat(column=text, marks=### Human:)",
    ),
    rows(
        "ChatML text",
        "OpenHermes exports; text with <|im_start|>",
        {"text": f"<|im_start|>user\n{Q}<|im_end|>"},
        ("text", "", f"<|im_start|>user\n{Q}<|im_end|>"),
        "data.text_holds_formatted_chat(column=text, marks=<|im_start|>)",
    ),
    rows(
        "Llama 2 text",
        "mlabonne/guanaco-llama2-1k: [INST]",
        {"text": f"<s>[INST] {Q} [/INST] {A} </s>"},
        ("text", "", f"<s>[INST] {Q} [/INST] {A} </s>"),
        "data.text_holds_formatted_chat(column=text, marks=[INST])",
    ),
    rows(
        "input_output",
        "Axolotl, type: input_output: segments",
        {"segments": [{"label": False, "text": Q}, {"label": True, "text": A}]},
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), "
            "columns=segments, hint=, advice=data.set_columns())"
        ),
    ),
]
DPO = "preferences=config.learns_from_pairs()"
PREFERENCES = [
    rows(
        "HH-RLHF",
        "Anthropic/hh-rlhf",
        {
            "chosen": f"\n\nHuman: {Q}\n\nAssistant: {A}",
            "rejected": f"\n\nHuman: {Q}\n\nAssistant: Four.",
        },
        None,
        DPO,
    ),
    rows(
        "UltraFeedback",
        "HuggingFaceH4/ultrafeedback_binarized",
        {
            "prompt": Q,
            "prompt_id": "1",
            "chosen": [*CHAT],
            "rejected": [*PROMPT_TURNS, *WORSE],
            "messages": CHAT,
            "score_chosen": 8.0,
            "score_rejected": 2.0,
        },
        None,
        DPO,
    ),
    rows(
        "Intel DPO pairs",
        "Intel/orca_dpo_pairs",
        {"system": "", "question": Q, "chosen": A, "rejected": "Four."},
        None,
        (
            "data.preference_pairs(columns='chosen' and 'rejected', "
            "preferences=config.learns_from_pairs(), instead=data.set_pair_columns("
            "prompt=question, answer=chosen))"
        ),
    ),
    rows(
        "DPO pairs, the better learnt",
        "the same, told",
        {"prompt": Q, "chosen": A, "rejected": "Four."},
        None,
        (
            "data.preference_pairs(columns='chosen' and 'rejected', "
            "preferences=config.learns_from_pairs(), instead=data.set_pair_columns("
            "prompt=prompt, answer=chosen))"
        ),
    ),
    rows(
        "LLaMA-Factory ranking",
        "LLaMA-Factory, dpo_zh_demo",
        {
            "conversations": [SHAREGPT[0]],
            "chosen": {"from": "gpt", "value": A},
            "rejected": {"from": "gpt", "value": "Four."},
        },
        None,
        DPO,
    ),
    rows(
        "OpenAI preferences",
        "OpenAI DPO fine-tuning",
        {
            "input": {"messages": PROMPT_TURNS},
            "preferred_output": ANSWER_TURNS,
            "non_preferred_output": WORSE,
        },
        None,
        DPO,
    ),
    rows(
        "Stack Exchange pairs",
        "lvwerra/stack-exchange-paired",
        {"question": Q, "response_j": A, "response_k": "Four."},
        None,
        DPO,
    ),
    rows(
        "SafeRLHF",
        "PKU-Alignment/PKU-SafeRLHF",
        {"prompt": Q, "response_0": A, "response_1": "Four.", "better_response_id": 0},
        None,
        DPO,
    ),
    rows(
        "Arena",
        "lmsys/chatbot_arena_conversations",
        {
            "model_a": "x",
            "model_b": "y",
            "winner": "model_a",
            "conversation_a": CHAT,
            "conversation_b": [*PROMPT_TURNS, *WORSE],
        },
        None,
        DPO,
    ),
    rows(
        "KTO",
        "trl-lib/kto-mix-14k",
        {"prompt": PROMPT_TURNS, "completion": ANSWER_TURNS, "label": True},
        None,
        "data.answers_labeled_good_or_bad(label=label, shape=prompt)",
    ),
    rows(
        "Steps with labels",
        "trl-lib/prm800k: stepwise supervision",
        {"prompt": Q, "completions": [A], "labels": [True]},
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), columns=prompt, "
            "completions, labels, hint=data.meant_column(name=completions, "
            "known=completion), advice=data.set_columns())"
        ),
    ),
]
SQUAD_1 = {
    "version": "1.1",
    "data": [
        {
            "title": "x",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {"id": str(n), "question": Q, "answers": [{"text": A, "answer_start": 0}]}
                        for n in range(2)
                    ],
                }
            ],
        }
    ],
}
SQUAD_2 = {
    "version": "v2.0",
    "data": [
        {
            "title": "x",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "1",
                            "question": Q,
                            "answers": [{"text": A, "answer_start": 0}],
                            "is_impossible": False,
                        },
                        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}
COQA = {
    "version": "1",
    "data": [
        {
            "story": CONTEXT,
            "questions": [{"input_text": Q, "turn_id": 1}],
            "answers": [{"input_text": A, "turn_id": 1}],
        }
    ],
}
QUESTIONS = [
    Shape("SQuAD 1.1", "rajpurkar, train-v1.1.json", "train-v1.1.json", SQUAD_1, ("qa", BELOW, A)),
    Shape(
        "SQuAD 2.0",
        "rajpurkar, train-v2.0.json",
        "train-v2.0.json",
        SQUAD_2,
        ("qa", BELOW, A),
        "data.column_without_answer(column=answers)",
        num_rows=1,
    ),
    rows(
        "SQuAD of the Hub",
        "rajpurkar/squad: answers with texts",
        {
            "id": "1",
            "title": "x",
            "context": CONTEXT,
            "question": Q,
            "answers": {"text": [A, "3"], "answer_start": [0, 1]},
        },
        ("qa", BELOW, A),
    ),
    rows(
        "TriviaQA",
        "mandarjoshi/trivia_qa: answer with aliases",
        {"question": Q, "answer": {"value": A, "aliases": ["3"]}},
        QA_GIVES,
    ),
    Shape(
        "CoQA",
        "stanfordnlp, coqa-train-v1.0.json",
        "coqa.json",
        COQA,
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), columns=story, "
            "questions, answers, hint=data.meant_column(name=questions, "
            "known=question), advice=data.set_columns())"
        ),
    ),
    rows(
        "SciQ",
        "allenai/sciq",
        {"question": Q, "distractor1": "x", "correct_answer": A, "support": CONTEXT},
        ("qa", BELOW, A),
    ),
    rows(
        "MMLU",
        "cais/mmlu: the answer is a number",
        {"question": Q, "subject": "x", "choices": ["Two.", A], "answer": 1},
        ("qa", f"{Q}\n\nA. Two.\nB. {A}", f"B. {A}"),
        "choices",
    ),
    rows(
        "ARC",
        "allenai/ai2_arc: choices with labels",
        {
            "id": "1",
            "question": Q,
            "choices": {"text": ["Two.", A], "label": ["A", "B"]},
            "answerKey": "B",
        },
        ("qa", f"{Q}\n\nA. Two.\nB. {A}", f"B. {A}"),
        "choices",
    ),
    rows(
        "HellaSwag",
        "Rowan/hellaswag: ctx and endings",
        {"ctx": Q, "endings": ["x", "y"], "label": "1"},
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), columns=ctx, "
            "endings, label, hint=, advice=data.set_columns())"
        ),
    ),
    rows(
        "BoolQ",
        "google/boolq: the answer is true or false",
        {"question": Q, "passage": CONTEXT, "answer": True},
        None,
        "data.boolean_answers(column=answer)",
    ),
    rows(
        "Natural Questions, short",
        "sentence-transformers/natural-questions",
        {"query": Q, "answer": A},
        QA_GIVES,
    ),
    rows(
        "Retrieval triples",
        "sentence-transformers: anchor, positive, negative",
        {"anchor": Q, "positive": A, "negative": "x"},
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), columns=anchor, "
            "positive, negative, hint=, advice=data.set_columns())"
        ),
    ),
    rows(
        "NLI",
        "stanfordnlp/snli",
        {"premise": CONTEXT, "hypothesis": Q, "label": 0},
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), "
            "columns=premise, hypothesis, label, hint=, "
            "advice=data.set_prompt_and_answer(first=premise, second=hypothesis))"
        ),
    ),
]
QUESTIONS += [
    rows(
        "choices by letters",
        "GBaker/MedQA-USMLE-4-options: options are an object",
        {"question": Q, "options": {"A": "Two.", "B": A}, "answer": "B"},
        ("qa", f"{Q}\n\nA. Two.\nB. {A}", f"B. {A}"),
        "choices",
    ),
    rows(
        "OpenBookQA",
        "allenai/openbookqa: question_stem",
        {
            "question_stem": Q,
            "choices": {"text": ["Two.", A], "label": ["A", "B"]},
            "answerKey": "B",
        },
        ("qa", f"{Q}\n\nA. Two.\nB. {A}", f"B. {A}"),
        "choices",
    ),
]
TRANSLATED = {"translation": {"de": "Wie viele?", "en": Q}}
OTHERS = [
    rows(
        "WMT translations",
        "wmt/wmt16: a direction must be chosen",
        TRANSLATED,
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), "
            "columns=translation, hint=, advice=data.set_prompt_and_answer("
            "first=translation.de, second=translation.en))"
        ),
    ),
    Shape(
        "WMT, the direction told",
        "the same",
        "rows.jsonl",
        two(TRANSLATED),
        ("prompt", "Wie viele?", Q),
        settings={"prompt_column": "translation.de", "answer_column": "translation.en"},
    ),
    rows(
        "OPUS columns",
        "columns named by languages",
        {"en": Q, "de": "Wie viele?"},
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), columns=en, de, "
            "hint=, advice=data.set_prompt_and_answer(first=en, second=de))"
        ),
    ),
    rows(
        "Texts with labels",
        "stanfordnlp/imdb: text, label",
        {"text": CONTEXT, "label": 1},
        None,
        ("data.text_with_label(text=text, label=label, text_value=text, label_value=label)"),
    ),
    Shape(
        "Reviews with sentiments",
        "Kaggle's IMDB: review, sentiment",
        "IMDB Dataset.csv",
        "review,sentiment\ngood,positive\nbad,negative\n",
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), columns=review, "
            "sentiment, hint=, advice=data.set_prompt_and_answer(first=review, "
            "second=sentiment))"
        ),
    ),
    Shape(
        "data.label_studio_tasks()",
        "Label Studio, export JSON",
        "project.json",
        two(
            {
                "id": 1,
                "annotations": [{"result": [{"value": {"choices": ["x"]}}]}],
                "data": {"text": CONTEXT},
            }
        ),
        None,
        "data.label_studio_tasks()",
    ),
    Shape(
        "Label Studio, JSON-MIN",
        "Label Studio, export JSON-MIN",
        "project.json",
        two({"id": 1, "text": CONTEXT, "sentiment": "x", "annotator": 1}),
        None,
        (
            "data.text_with_label(text=text, label=sentiment, text_value=text, "
            "label_value=sentiment)"
        ),
    ),
    rows(
        "Doccano",
        "doccano export: text, label lists",
        {"id": 1, "text": CONTEXT, "label": [[0, 4, "PER"]]},
        None,
        ("data.text_with_label(text=text, label=label, text_value=text, label_value=label)"),
    ),
    rows(
        "Token classes",
        "conll2003: tokens, ner_tags",
        {"tokens": ["Anna"], "ner_tags": [1]},
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), columns=tokens, "
            "ner_tags, hint=, advice=data.set_columns())"
        ),
    ),
    rows(
        "Tokenised before",
        "a saved set of token ids",
        {"input_ids": [1, 2], "attention_mask": [1, 1], "labels": [1, 2]},
        None,
        "data.rows_of_token_ids()",
    ),
    rows(
        "C4",
        "allenai/c4: text, timestamp, url",
        {"text": CONTEXT, "timestamp": "x", "url": "x"},
        ("text", "", CONTEXT),
    ),
    rows(
        "Wikipedia",
        "wikimedia/wikipedia: title and text",
        {"id": "1", "url": "x", "title": "x", "text": CONTEXT},
        ("text", "", CONTEXT),
    ),
    rows(
        "Code",
        "bigcode/the-stack: content",
        {"content": CONTEXT, "path": "x", "lang": "x"},
        ("text", "", CONTEXT),
    ),
    rows(
        "Only one other column",
        "a list of sentences",
        {"sentence": CONTEXT},
        None,
        (
            "data.unrecognized_rows(wanted=data.in_no_known_shape(), "
            "columns=sentence, hint=, advice=data.set_text_column(column=sentence))"
        ),
    ),
]
JSON_FILES = [
    Shape(
        "JSON array",
        "Alpaca's alpaca_data.json",
        "alpaca_data.json",
        two({"instruction": Q, "input": "", "output": A}),
        ("alpaca", Q, A),
    ),
    Shape(
        "JSON array named .jsonl",
        "saved by json.dump",
        "rows.jsonl",
        json.dumps(two(PAIR)),
        PROMPT_GIVES,
    ),
    Shape("JSON lines named .json", "Hub data sets", "rows.json", lines(PAIR), PROMPT_GIVES),
    Shape(
        "pretty-printed objects",
        "jq '.', printed one after the other",
        "rows.jsonl",
        "\n".join([json.dumps(PAIR, indent=2)] * 2),
        PROMPT_GIVES,
    ),
    Shape("objects without line ends", "logs: }{", "rows.json", json.dumps(PAIR) * 2, PROMPT_GIVES),
    Shape(
        "objects with commas",
        "an array that lost its brackets",
        "rows.json",
        ",\n".join([json.dumps(PAIR)] * 2) + ",\n",
        PROMPT_GIVES,
    ),
    Shape(
        "columnar",
        "pandas: to_dict('list'); datasets: to_dict",
        "rows.json",
        {"question": [Q, Q], "answer": [A, A]},
        QA_GIVES,
    ),
    Shape(
        "columns by row",
        "pandas: to_json()",
        "rows.json",
        {"question": {"0": Q, "1": Q}, "answer": {"0": A, "1": A}},
        QA_GIVES,
    ),
    Shape(
        "split",
        "pandas: to_json(orient='split')",
        "rows.json",
        {"columns": ["question", "answer"], "index": [0, 1], "data": [[Q, A], [Q, A]]},
        QA_GIVES,
    ),
    Shape(
        "records by id",
        "{id: row}; pandas: orient='index'",
        "rows.json",
        {"0": QA, "1": QA},
        QA_GIVES,
    ),
    Shape(
        "under data",
        "Vicuna-like: {data: [...]}",
        "rows.json",
        {"version": 1, "data": two(QA)},
        QA_GIVES,
    ),
    Shape(
        "under another key",
        "{examples: [...]}",
        "rows.json",
        {"name": "x", "examples": two(QA)},
        QA_GIVES,
    ),
    Shape(
        "Hub rows",
        "datasets-server.huggingface.co/rows",
        "rows.json",
        {
            "features": [{"name": "question"}],
            "rows": [{"row_idx": n, "row": QA, "truncated_cells": []} for n in range(2)],
            "num_rows_total": 2,
        },
        QA_GIVES,
    ),
    Shape(
        "one object", "one chat, saved", "chat.json", {"messages": CHAT}, MESSAGES_GIVES, num_rows=1
    ),
    Shape(
        "arrays in lines",
        "[question, answer] a line",
        "rows.jsonl",
        f'["{Q}", "{A}"]\n["{Q}", "{A}"]\n',
        None,
        "rows.jsonl:1: wrong type (data.line_not_object(kind=a list))",
    ),
    Shape(
        "Python, not JSON",
        "print(row): single quotes",
        "rows.jsonl",
        "{'prompt': 'x', 'completion': 'y'}\n" * 2,
        None,
        (
            "rows.jsonl:1: broken JSON (data.json_error_at_column(error=Expecting property name "
            "enclosed in double quotes, column=2)): data.write_with_json_dumps()"
        ),
    ),
    Shape(
        "numbered rows",
        "json.dump: all in one line",
        "rows.json",
        json.dumps([QA, {"question": Q, "answer": None}]),
        QA_GIVES,
        "rows.json:2: empty",
        num_rows=1,
    ),
]
CSV = f"question,answer\n{Q},{A}\n{Q},{A}\n"
TABLES = [
    Shape("CSV", "any spreadsheet", "rows.csv", CSV, QA_GIVES),
    Shape("CSV with semicolons", "Excel in Europe", "rows.csv", CSV.replace(",", ";"), QA_GIVES),
    Shape(
        "CSV with a mark",
        "Excel: CSV UTF-8",
        "rows.csv",
        codecs.BOM_UTF8 + CSV.replace("\n", "\r\n").encode(),
        QA_GIVES,
    ),
    Shape(
        "CSV in Latin-1",
        "Excel: CSV",
        "rows.csv",
        CSV.replace("Three", "Fünf").encode("latin-1"),
        None,
        "rows.csv:2: invalid UTF-8: data.windows_text(encoding=cp1252)",
    ),
    Shape(
        "JSON lines in Latin-1",
        "an old export",
        "rows.jsonl",
        lines(PAIR).replace(b"Three", b"F\xfcnf"),
        None,
        "rows.jsonl:1: invalid UTF-8: data.windows_text(encoding=cp1252)",
    ),
    Shape(
        "CSV without a header",
        "question,answer in each line",
        "rows.csv",
        f"{Q},{A}\n{Q} Yes?,{A}\n",
        None,
        "data.missing_header(first_field=How many?)",
    ),
    Shape("TSV", "Tatoeba-like with a header", "rows.tsv", CSV.replace(",", "\t"), QA_GIVES),
    Shape(
        "tabs named .csv",
        "Excel: Unicode text, as UTF-8",
        "rows.csv",
        CSV.replace(",", "\t"),
        QA_GIVES,
    ),
    Shape(
        "UTF-16",
        "Excel: Unicode text; PowerShell's >",
        "rows.csv",
        CSV.encode("utf-16"),
        QA_GIVES,
    ),
    Shape(
        "UTF-16 without a byte order mark",
        "an export of a program for Windows",
        "rows.csv",
        CSV.encode("utf-16-le"),
        None,
        (
            "data.file_not_text(path=/rows.csv, kind=data.utf16_without_bom(), "
            "contrast=data.not_text_as_named(), remedy=data.set_encoding("
            "encoding=utf-16-le))"
        ),
    ),
    Shape(
        "CSV in Cyrillic",
        "Excel: CSV, in Russian",
        "rows.csv",
        CSV.replace("Three", "Три яблока").encode("cp1251"),
        None,
        "rows.csv:2: invalid UTF-8: data.set_encoding_of_common()",
    ),
    Shape(
        "Excel",
        "a workbook with a header",
        "rows.xlsx",
        sheet([["question", "answer"], [Q, A], [Q, A]]),
        QA_GIVES,
    ),
    Shape(
        "Excel with an index",
        "pandas: to_excel",
        "rows.xlsx",
        sheet([["", "question", "answer"], ["0", Q, A], ["1", Q, A]]),
        QA_GIVES,
    ),
    Shape(
        "Excel named .csv",
        "renamed instead of exported",
        "rows.csv",
        sheet([["question", "answer"], [Q, A]]),
        None,
        "kind=data.kind_excel()",
    ),
    Shape(
        "Word",
        "a document",
        "rows.docx",
        zipped({"[Content_Types].xml": b"x", "word/document.xml": b"x"}),
        None,
        "=data.kind_word()",
    ),
    Shape(
        "gzip",
        "Hub data sets, helpful-base/train.jsonl.gz",
        "rows.jsonl.gz",
        gzip.compress(lines(PAIR)),
        PROMPT_GIVES,
    ),
    Shape(
        "gzip without its ending",
        "renamed",
        "rows.jsonl",
        gzip.compress(lines(PAIR)),
        None,
        (
            "data.file_not_text(path=/rows.jsonl, kind=data.kind_gzip(), "
            "contrast=data.not_text_as_named(), remedy=data.add_gz_extension())"
        ),
    ),
    Shape("bzip2", "dumps", "rows.jsonl.bz2", bz2.compress(lines(PAIR)), PROMPT_GIVES),
    Shape(
        "xz",
        "OSCAR, OpenWebText",
        "rows.jsonl.xz",
        lzma.compress(lines(PAIR)),
        None,
        (
            "data.path_is_not_data(path=rows.jsonl.xz, kind=data.kind_xz(), "
            "remedy=data.unpack_or_export())"
        ),
    ),
    Shape(
        "zstd",
        "The Pile: .jsonl.zst",
        "rows.jsonl.zst",
        zstandard.compress(lines(PAIR)),
        PROMPT_GIVES,
    ),
    Shape(
        "zip",
        "Kaggle: archive.zip with one table",
        "archive.zip",
        zipped({"rows.csv": CSV.encode(), "readme.txt": b"Read me"}),
        QA_GIVES,
        "data.other_files_skipped(count=1",
    ),
    Shape(
        "zip of many",
        "train and test in one archive",
        "archive.zip",
        zipped({"train.csv": CSV.encode(), "test.csv": CSV.encode()}),
        None,
        ("data.zip_needs_one_file(path=/archive.zip, num_files=2, names=train.csv, test.csv)"),
    ),
    Shape(
        "Zipped CSV",
        "rows.csv.zip: macOS",
        "rows.csv.zip",
        zipped({"rows.csv": CSV.encode(), "__MACOSX/._rows.csv": b"x"}),
        QA_GIVES,
    ),
    Shape(
        "Git LFS",
        "git clone without lfs",
        "rows.jsonl",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        None,
        (
            "data.file_not_text(path=/rows.jsonl, kind=data.kind_lfs_pointer(), "
            "contrast=data.not_text_as_named(), remedy=data.fetch_lfs_file())"
        ),
    ),
    Shape(
        "web page",
        "a page instead of the raw file",
        "rows.csv",
        "<!DOCTYPE html>\n<html></html>\n",
        None,
        "kind=data.kind_web_page()",
    ),
    Shape(
        "SQLite",
        "an app's data",
        "rows.db",
        b"SQLite format 3\x00" + b"\x00" * 99,
        None,
        "kind=data.kind_sqlite()",
    ),
]
TABLES += [
    Shape(
        "a line for Excel",
        "Excel: sep=; above the header",
        "rows.csv",
        "sep=;\n" + CSV.replace(",", ";"),
        None,
        "data.excel_separator_line(file=rows.csv, line=sep=)",
    ),
    Shape(
        "quoted fields",
        "LibreOffice: all fields in quotes, semicolons inside",
        "rows.csv",
        f'"question";"answer"\n"{Q}; yes";"{A}"\n"{Q}";"{A}"\n',
        ("qa", f"{Q}; yes", A),
    ),
]
FOLDERS = [
    Shape("texts", "one text a paragraph", "notes.txt", "One.\n\nTwo.\n", ("text", "", "One.")),
    Shape("markdown", "notes", "notes.md", "# One\n\nTwo.\n", ("text", "", "# One")),
    Shape(
        "markdown folder",
        "an Obsidian vault, the pages of a site",
        "vault/",
        {"a.md": b"One.\n\nTwo.\n", "b/c.md": b"Three.\n", ".obsidian/app.json": b"{}"},
        ("text", "", "One."),
        num_rows=3,
    ),
    Shape(
        "table with a readme",
        "a Hub data set, cloned",
        "cloned/",
        {"README.md": b"# Read me\n", "data/train.csv": CSV.encode(), "notes.txt": b"x"},
        QA_GIVES,
        "data.files_skipped(files_are=data.files_is(files=notes.txt))",
    ),
    Shape(
        "splits in a folder",
        "train.jsonl, test.jsonl",
        "splits/",
        {"train.jsonl": lines(QA), "test.jsonl": lines(QA)},
        QA_GIVES,
        "data.recognized_pair(prompt=question, answer=answer)",
    ),
    Shape(
        "pictures",
        "a folder without data",
        "pictures/",
        {"a.png": b"\x89PNG\r\n"},
        None,
        "data.folder_without_data_files(folder=/pictures, names=a.png",
    ),
]
FILE_SHAPES = [
    *INSTRUCTIONS,
    *LANGUAGES,
    *CHATS,
    *PREFERENCES,
    *QUESTIONS,
    *OTHERS,
    *JSON_FILES,
    *TABLES,
    *FOLDERS,
]


def write(shape: Shape, folder: Path) -> Path:
    """Make the file in a folder."""
    path, content = folder / shape.file, shape.content
    if shape.file.endswith("/"):
        assert isinstance(content, dict)
        for name, part in content.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(part)
    elif isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif isinstance(content, list) and path.suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content), "utf-8"
        )
    else:
        path.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    return path


def table() -> str:
    """All shapes with what becomes of them, in Markdown."""
    heads = ("shape", "source", "file", "what is learnt, or what the sentence names")
    lines = ["| " + " | ".join(heads) + " |", "| --- " * 4 + "|"]
    for shape in FILE_SHAPES:
        learnt = "; ".join(map(repr, shape.gives[1:])) if shape.gives else f"refused: {shape.words}"
        kind = f"{shape.gives[0]}: " if shape.gives else ""
        cells = (shape.name, shape.source, f"`{shape.file}`", f"{kind}{learnt}")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
