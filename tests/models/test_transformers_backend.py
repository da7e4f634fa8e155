"""What is wrong with a model's configuration is told in one sentence, whatever raised it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.models.source import (
    find_source,
)
from infrastructure.models.transformers_backend import (
    LoadOptions,
    load_causal_lm,
    load_tokenizer,
)

WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    (
        {"hidden_size": "big"},
        r"models\.config_value_invalid\(.*'hidden_size' expected int, got str",
    ),
    ({"hidden_size": None}, r"models\.config_value_invalid\(.*'hidden_size' expected int"),
    (
        {"num_attention_heads": 3},
        r"models\.config_value_invalid\(.*not a multiple of the number of attention",
    ),
    ({"num_attention_heads": 0}, r"models\.config_value_invalid\(.*error=ZeroDivisionError: "),
    ({"dtype": "nope"}, r"models\.config_value_invalid\(.*error=AttributeError: .*'nope'"),
    ({"hidden_act": "nope"}, r"models\.model_not_loaded\(.*reason=KeyError: 'nope'"),
]


@pytest.mark.parametrize(("values", "sentence"), WRONG_VALUES)
def test_a_wrong_value_is_named(llama_folder: Path, values: dict[str, Any], sentence: str) -> None:
    path = llama_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    options = LoadOptions(torch.device("cpu"), torch.float32)
    with pytest.raises(ValueError, match=sentence) as raised:
        load_causal_lm(find_source(str(llama_folder)), options)
    assert f"(location={llama_folder}, " in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("dropout", [None, 0.0, 0.1])
def test_a_tokenizer_that_splits_at_random_is_refused(
    llama_folder: Path, dropout: float | None
) -> None:
    path = llama_folder / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"]["dropout"] = dropout
    path.write_text(json.dumps(values))
    source, options = (
        find_source(str(llama_folder)),
        LoadOptions(torch.device("cpu"), torch.float32),
    )
    if not dropout:
        assert load_tokenizer(source, options)("a")["input_ids"]
        return
    about = rf"location={llama_folder}, dropout=0\.1"
    with pytest.raises(ValueError, match=rf"models\.tokenizer_is_random\({about}"):
        load_tokenizer(source, options)
