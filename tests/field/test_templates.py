"""What TRL's chat templates leave out of a row: said by position, confirmed by the tokens."""

from typing import Any

import pytest

from infrastructure.data.encoding.tokenization import ConversationEncoder, Encoded
from infrastructure.data.readers.rows import LEFT_OUT
from tests.data.builders import CHATML
from tests.data.trl_masks import all_templates, needs_templates, tokenizer_for
from tests.field.templates import EVERYTHING, PARTS, Found, look
from tests.slow import slow_but

TEMPLATES = all_templates()
# Of the families one each, and of what TRL trains with instead: the others write alike.
QUICK = {
    *("cohere2_training", "deepseek_r1_distill", "deepseekv3", "gemma4", "glm4moe", "gptoss"),
    *("lfm2_2_5", "llama3_1", "llava_next", "nemotron_3_nano", "phi3", "qwen3", "qwen3_training"),
} & {*TEMPLATES}
ALL = slow_but(QUICK, TEMPLATES)


@pytest.mark.parametrize("name", ALL)
def test_r2_what_a_template_leaves_out_is_what_a_reader_misses(name: str) -> None:
    accepted = 0
    for title, part in PARTS.items():
        found = look(TEMPLATES[name], part)
        if isinstance(found, str):
            continue
        accepted += 1
        assert found.account.undetermined == (), title
        assert found.by_mechanism(part) >= found.by_reader, title  # nothing is lost unsaid
        lost = {text for text in part.texts if not found.by_reader.isdisjoint(text)}
        counted = {text for text in part.texts if not found.by_mechanism(part).isdisjoint(text)}
        assert counted == lost, title  # and nothing is said to be lost that is there
    assert accepted >= len(PARTS) / 3


@pytest.mark.parametrize("name", ALL)
def test_r2_what_is_trained_on_holds_every_word_of_the_answers(name: str) -> None:
    """Or the row is set aside, because the template leaves something out of them."""
    tokenizer = tokenizer_for(TEMPLATES[name])
    encoder = ConversationEncoder(tokenizer, max_length=1 << 20)
    for title, part in PARTS.items():
        (result,) = encoder.encode([part.conversation()])
        found = look(encoder.template.template if encoder.template else "", part)
        if isinstance(found, str):
            continue
        if isinstance(result, Encoded):
            learned = tokenizer.decode(result.example.input_ids[result.example.supervised])
            assert words_of_answers(part.messages) <= words_in(learned), title
            assert not result.account.unlearnable
        elif result.reason == LEFT_OUT:
            assert found.account.unlearnable, title
            assert not words_of_answers(part.messages).isdisjoint(found.by_reader), title


WORDS = {word for part in PARTS.values() for text in part.texts for word in text}


def words_in(text: str) -> set[str]:
    return {word for word in WORDS if word in text}


def words_of_answers(messages: list[dict[str, Any]]) -> set[str]:
    return words_in(str([one for one in messages if one["role"] == "assistant"]))


@needs_templates
@pytest.mark.parametrize(
    "name", slow_but(["glm4moe"], ["qwen3_training", "glm4moe", "nemotron_3_nano", "gemma4"])
)
def test_r9_in_a_list_of_templates_the_one_for_tools_writes_the_same(name: str) -> None:
    alone = tokenizer_for(TEMPLATES[name])
    listed = tokenizer_for(TEMPLATES[name])
    listed.chat_template = {"default": CHATML, "tool_use": TEMPLATES[name]}
    for part in (PARTS["tools"], EVERYTHING):
        found = [
            ConversationEncoder(tokenizer, max_length=1 << 20).encode([part.conversation()])[0]
            for tokenizer in (alone, listed)
        ]
        assert isinstance(found[0], Encoded) == isinstance(found[1], Encoded)
        if isinstance(found[0], Encoded) and isinstance(found[1], Encoded):
            assert found[0].example.input_ids.tolist() == found[1].example.input_ids.tolist()
            assert found[0].example.supervised.tolist() == found[1].example.supervised.tolist()


@needs_templates
def test_the_table_has_losses_of_each_kind() -> None:
    """The templates that the reports name lose what they say, and the others do not."""

    def lost(name: str, title: str) -> set[str]:
        found = look(TEMPLATES[name], PARTS[title])
        assert isinstance(found, Found)
        return set(found.by_reader)

    assert lost("llama3", "call") >= {"emu", "galah"}
    assert lost("llama3_1", "text beside a call") == {"wombat"}
    assert lost("deepseekv3", "last tags") == {"potoroo"}
    assert lost("glm4moe", "early reasoning") == {"potoroo"}
    assert lost("glm4moe", "last reasoning") == set()
    assert lost("gptoss", "two calls of one name") >= {"kea"}
    assert lost("qwen3_training", "everything") == set()
