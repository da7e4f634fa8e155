"""The template for Ollama writes what the training's template wrote, or there is none."""

from collections.abc import Sequence

import jinja2
import pytest

from infrastructure.data.readers.rows import Turn
from infrastructure.features.export_gguf.ollama_template import Pieces, find_pieces, modelfile

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe good.<|im_end|>\n{% endif %}"
    + CHATML
)
LLAMA_2 = (
    "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {% if loop.first and s %}<<SYS>>{{ s }}<</SYS>>{% endif %}"
    "{{ m.content }} [/INST]{% else %} {{ m.content }} </s>{% endif %}{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)
SHOUTS = "{% for m in messages %}{{ m.content | upper }}\n{% endfor %}"
COUNTS = "{% for m in messages %}{{ loop.index }}. {{ m.content }}\n{% endfor %}"


def renderer(template: str):
    made = jinja2.Environment().from_string(template)

    def render(turns: Sequence[Turn]) -> str:
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        return made.render(messages=messages)

    return render


@pytest.mark.parametrize("template", [CHATML, DEFAULT_SYSTEM, LLAMA_2, NO_SYSTEM])
def test_pieces_write_what_the_template_writes(template: str) -> None:
    render = renderer(template)
    pieces = find_pieces(render)
    assert pieces is not None
    turns = [Turn("user", 'A "b" {{ c }}'), Turn("assistant", "d\ne"), Turn("user", "f")]
    assert pieces.write(turns) == render(turns)
    if pieces.before_system is not None:
        assert pieces.write([Turn("system", "g"), *turns]) == render([Turn("system", "g"), *turns])
    assert (pieces.before_system is None) == (template == NO_SYSTEM)


@pytest.mark.parametrize("template", [SHOUTS, COUNTS])
def test_a_template_of_another_kind_has_no_pieces(template: str) -> None:
    assert find_pieces(renderer(template)) is None


def test_the_modelfile_has_literal_text_in_quotes() -> None:
    text = modelfile(Pieces("<u>", None, "", "</u>\n", '{{"', "<a>"), "m.gguf", ["</s>"])
    assert text == (
        'FROM ./m.gguf\nTEMPLATE """{{ $before := "<u>" }}{{ range .Messages }}'
        '{{ if eq .Role "user" }}{{ $before }}{{ .Content }}{{ $before = "" }}'
        '{{ else if eq .Role "assistant" }}{{ "</u>\\n" }}{{ .Content }}{{ $before = "{{\\"" }}'
        '{{ end }}{{ end }}{{ "<a>" }}"""\nPARAMETER stop "</s>"\n'
    )
