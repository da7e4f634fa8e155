"""Column names to look for: names in well-known datasets, and names in other languages.

These names are used only if no column has one of the usual names, which are in `schema_detection`.
"""

import unicodedata
from dataclasses import dataclass


@dataclass(frozen=True)
class NamedPair:
    """The names of a question column and an answer column that occur together.

    Attributes:
        shape: the shape of rows with these columns.
        contexts: possible names of a column with the context of the question.
    """

    shape: str
    prompt: str
    answer: str
    contexts: tuple[str, ...] = ()


def plain(name: str) -> str:
    """Return a column name normalized for comparison: case-folded, NFC, with underscores."""
    composed = unicodedata.normalize("NFC", name).casefold().strip()
    return composed.replace(" ", "_").replace("-", "_")


_PROMPTS = """
prompt generation | prompt target | inputs targets | input_text output_text | input_text target_text
source target | src tgt | user assistant | user bot | user model | human assistant | human bot
user_message assistant_message | user_input model_output | message_1 message_2 | context response
context reply | front back | article highlights | article summary | document summary
dialogue summary | dialog summary | text summary | body summary | report summary | source summary
text translation | source_text target_text | utterance response | input expected_output
"""
_QUESTIONS = """
q a | question answers | query answers | question correct_answer | question best_answer
question answerkey | question_stem answerkey | question answer_text
question_text answer_text | questions answers
frage antwort | fragen antworten | question réponse | question reponse | questions réponses
pregunta respuesta | preguntas respuestas | domanda risposta | domande risposte
pergunta resposta | perguntas respostas | vraag antwoord | întrebare răspuns | intrebare raspuns
pytanie odpowiedź | pytanie odpowiedz | otázka odpověď | otázka odpoveď | kérdés válasz
fråga svar | spørgsmål svar | spørsmål svar | kysymys vastaus | ερώτηση απάντηση | въпрос отговор
вопрос ответ | вопросы ответы | питання відповідь | soru cevap | soru yanıt | sual cavab
السؤال الجواب | سؤال جواب | سؤال إجابة | السؤال الإجابة | پرسش پاسخ | שאלה תשובה
प्रश्न उत्तर | सवाल जवाब | প্রশ্ন উত্তর | கேள்வி பதில் | คำถาม คำตอบ | câu_hỏi câu_trả_lời
câu_hỏi trả_lời | pertanyaan jawaban | soalan jawapan | tanong sagot
问题 答案 | 问题 回答 | 提问 回答 | 问 答 | 問題 答案 | 問題 回答 | 質問 回答 | 質問 答え
問い 答え | 질문 답변 | 질문 대답 | 질문 답
"""

_INSTRUCTIONS = """
anweisung ausgabe eingabe | instruktion ausgabe eingabe | consigne réponse entrée
instruction réponse entrée | instruction sortie entrée | instrucción respuesta entrada
instrucción salida entrada | istruzione risposta input | istruzione output input
instrução resposta entrada | instrução saída entrada | инструкция ответ ввод
инструкция вывод ввод | talimat çıktı girdi | 指令 输出 输入 | 指令 回答 输入 | 指令 輸出 輸入
指示 出力 入力 | 指示 応答 入力 | 지시 출력 입력 | 명령 출력 입력
"""
_CONTEXTS = """
context passage support paragraph kontext contexte contexto contesto контекст bağlam سياق 上下文
背景 文脈 맥락
"""


def _pairs(shape: str, text: str, contexts: tuple[str, ...] = ()) -> list[NamedPair]:
    entries = [entry.split() for line in text.strip().splitlines() for entry in line.split("|")]
    return [
        NamedPair(shape, plain(names[0]), plain(names[1]), tuple(map(plain, names[2:])) or contexts)
        for names in entries
    ]


def known_pairs(prompt: str, question: str, instruction: str) -> list[NamedPair]:
    """Return all known pairs of names of a question column and an answer column.

    Args:
        prompt, question, instruction: the row shape to give to pairs of each of the three kinds.
    """
    contexts = tuple(map(plain, _CONTEXTS.split()))
    return [
        *_pairs(prompt, _PROMPTS),
        *_pairs(question, _QUESTIONS, contexts),
        *_pairs(instruction, _INSTRUCTIONS),
    ]


# Columns of a better and a worse answer.
PREFERENCE_PAIRS = (
    ("chosen", "rejected"),
    ("preferred_output", "non_preferred_output"),
    ("response_j", "response_k"),
    ("response_0", "response_1"),
    ("response_a", "response_b"),
    ("output_1", "output_2"),
    ("answer_a", "answer_b"),
    ("conversation_a", "conversation_b"),
)
