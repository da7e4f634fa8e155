"""An Ollama Modelfile whose template writes prompts as in training.

Chat templates of transformers are Jinja, and those of Ollama are Go templates. To find the text
around messages, the template used in training is rendered with a few words that occur nowhere else,
and the Go template is assembled from the pieces. Further conversations are then rendered with both.
If the results differ (a template may, for example, put the system prompt into the first question),
no Modelfile is written, because prompts that differ from training would silently give worse
answers.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infrastructure.data.readers.rows import Turn

Render = Callable[[Sequence[Turn]], str]

SYSTEM, USER, ANSWER, SECOND = "Syzq7391", "Uszq4826", "Aszq1157", "Uszq9034"


@dataclass(frozen=True)
class Pieces:
    """The fixed texts that a chat template puts around messages.

    Attributes:
        first: the text before the first question, if there is no system prompt.
        before_system, after_system: the text around a system prompt; `before_system` is None if the
            template does not support one.
        answer: the text between a question and its answer.
        next: the text between an answer and the next question.
        last: the text after the last question, before the model's answer.
    """

    first: str
    before_system: str | None
    after_system: str
    answer: str
    next: str
    last: str

    def write(self, turns: Sequence[Turn]) -> str:
        """Return the text that the Go template would render for `turns`."""
        text, before = "", self.first
        for turn in turns:
            if turn.role == "system":
                text += f"{self.before_system}{turn.text}"
                before = self.after_system
            elif turn.role == "user":
                text += before + turn.text
                before = ""
            else:
                text += self.answer + turn.text
                before = self.next
        return text + self.last

    def as_go(self) -> str:
        """Return the Go template for Ollama, in which literal text is quoted."""
        system = ""
        if self.before_system is not None:
            system = (
                f'{{{{ if eq .Role "system" }}}}{_literal(self.before_system)}{{{{ .Content }}}}'
                f"{{{{ $before = {_quoted(self.after_system)} }}}}{{{{ else }}}}"
            )
        messages = (
            f'{system}{{{{ if eq .Role "user" }}}}{{{{ $before }}}}{{{{ .Content }}}}'
            f'{{{{ $before = "" }}}}{{{{ else if eq .Role "assistant" }}}}{_literal(self.answer)}'
            f"{{{{ .Content }}}}{{{{ $before = {_quoted(self.next)} }}}}{{{{ end }}}}"
            f"{'{{ end }}' if system else ''}"
        )
        return (
            f"{{{{ $before := {_quoted(self.first)} }}}}{{{{ range .Messages }}}}{messages}"
            f"{{{{ end }}}}{_literal(self.last)}"
        )


def find_pieces(render: Render) -> Pieces | None:
    """Find the fixed texts of a chat template. Return None if they do not reproduce its output.

    Args:
        render: returns the text before an answer, given the messages before it.
    """
    try:
        first, last = _around(render(_turns(USER)), USER)
        answer, following = _between(render(_turns(USER, ANSWER, SECOND)), first)
        before_system, after_system = _of_system(render)
        pieces = Pieces(first, before_system, after_system, answer, following, last)
        is_right = all(pieces.write(turns) == render(turns) for turns in _tries(before_system))
    except Exception:  # templates raise errors of any type for what they do not support
        return None
    return pieces if is_right else None


def _turns(*texts: str, system: str | None = None) -> list[Turn]:
    roles = ("user", "assistant")
    turns = [Turn(roles[index % 2], text) for index, text in enumerate(texts)]
    return turns if system is None else [Turn("system", system), *turns]


def _around(text: str, word: str) -> tuple[str, str]:
    before, after = text.split(word)
    return before, after


def _between(text: str, first: str) -> tuple[str, str]:
    rest = text.removeprefix(first + USER)
    answer, rest = rest.split(ANSWER)
    following, _last = rest.split(SECOND)
    return answer, following


def _of_system(render: Render) -> tuple[str | None, str]:
    """Return the text before and after a system prompt.

    The text before is None if the template rejects or ignores system prompts.
    """
    try:
        text = render(_turns(USER, system=SYSTEM))
    except Exception:  # raised by the template
        return None, ""
    if SYSTEM not in text:
        return None, ""
    before, rest = text.split(SYSTEM)
    after, _last = rest.split(USER)
    return before, after


def _tries(before_system: str | None) -> list[list[Turn]]:
    several = ("How many?", "Three.", "And\n\nnow: {{ x }}?", 'Four, "say".', "Why?")
    tries = [_turns("Привіт!"), _turns(*several[:3]), _turns(*several)]
    if before_system is not None:
        tries += [_turns("Hi", system="Be brief."), _turns(*several, system="Be long.")]
    return tries


def _quoted(text: str) -> str:
    """Quote a text as a Go string. JSON's escapes are valid in Go."""
    return json.dumps(text, ensure_ascii=False)


def _literal(text: str) -> str:
    return f"{{{{ {_quoted(text)} }}}}" if text else ""


def modelfile(pieces: Pieces, weights: str, stops: Sequence[str]) -> str:
    """Return the text of an Ollama Modelfile for a GGUF file in the same folder.

    Args:
        weights: the name of the GGUF file.
        stops: the texts at which generation stops.
    """
    lines = [f"FROM ./{weights}", f'TEMPLATE """{pieces.as_go()}"""']
    lines += [f"PARAMETER stop {_quoted(stop)}" for stop in stops]
    return "\n".join([*lines, ""])
