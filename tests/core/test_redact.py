import logging
import sys

import pytest

from infrastructure.core.redact import (
    RedactingFormatter,
    is_secret_key,
    public_address,
    redact,
    redact_mapping,
    redact_shapes,
    redact_urls,
)

TOKENS = [
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh",
    "hf_a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    *(f"gh{kind}_0123456789abcdefghijABCDEFGHIJ012345" for kind in "ousr"),
    "github_pat_11AAAAAAA0bbbbbbbbbbbb_cccccccccc",
    "glpat-abcdefgh12345678ABCD",
    "sk-proj-abcdef1234567890abcdef",
    "xoxb-123456789012-123456789012-AbCdEfGhIjKl",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstuvw",
    "DEV-0123456789abcdef0123",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0123.c2ln",
]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("around", ["{}", "Bearer {}", "https://x.org/?a={}&b=1", "['{}']"])
def test_tokens_are_masked_wherever_they_stand(token: str, around: str) -> None:
    text = around.format(token)
    assert token not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://me:secret@host/x", "https://***@host/x"),
        ("postgres://u:p@db:5432/x", "postgres://***@db:5432/x"),
        ("no file https:/me:secret@host/x here", "no file https:/***@host/x here"),
        ("https://me:sec@ret@host/x", "https://***@host/x"),
        ("HF_TOKEN=abcdefgh next", "HF_TOKEN=*** next"),
        ("api_key: abcdefgh", "api_key: ***"),
        ("password = hunter22", "password = ***"),
    ],
)
def test_passwords(text: str, masked: str) -> None:
    assert redact(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "training.batch_size = 32 (environment BATCH_SIZE)",
        "tokens=123456 tokens_per_second: 1381.5",
        "bos_token = messages[0]",
        "me@example.org",
        "https://host/path@v1",
        "hf_hub",
        "/data/hf_datasets/rows.jsonl",
        "hf_internaltestingmodels",
        "models/sk-learn-notebooks-and-more/final",
        "C:/me@work/rows.jsonl",
        "a risk-free task-based desk-sized disk",
        "tokenizer: some/tokenizer",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "key",
    [
        *("HF_TOKEN", "api_key", "DB_PASSWORD", "client_secret", "AWS_SECRET_ACCESS_KEY", "token"),
        *("access_key", "accesskey", "private_key", "credentials", "monitor.webhook", "PASSWD"),
    ],
)
def test_secret_keys(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key", ["num_tokens", "tokens", "tokenizer", "pad_token_id", "bos_token", "max_tokens", "key"]
)
def test_keys_that_are_no_secrets(key: str) -> None:
    assert not is_secret_key(key)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://host.org/a/b.jsonl", "https://host.org/a/b.jsonl"),
        ("https://me:pass@host.org/b?token=abc#part", "https://host.org/b"),
        (f"https://host.org/{TOKENS[0]}/b", "https://host.org/***/b"),
        ("s3://key:pass@bucket/b", "s3://bucket/b"),
        ("https://host.org", "https://host.org/"),
    ],
)
def test_what_is_shown_of_an_address(address: str, shown: str) -> None:
    assert public_address(address) == shown


def test_mappings_at_any_depth() -> None:
    given = {
        "HF_TOKEN": "abc",
        "tokens": 5,
        "inner": {"password": "x", "path": "https://u:p@h/x"},
        "list": [TOKENS[0], 1, {"secret": "y"}],
        "pair": (TOKENS[0], 2),
        "template": "{% set bos_token = messages[0] %}",
        "empty_token": "",
    }
    masked = redact_mapping(given)
    assert masked == {
        "HF_TOKEN": "***",
        "tokens": 5,
        "inner": {"password": "***", "path": "https://***@h/x"},
        "list": ["***", 1, {"secret": "***"}],
        "pair": ["***", 2],
        "template": given["template"],
        "empty_token": "",
    }
    assert given["HF_TOKEN"] == "abc"


def test_a_path_keeps_its_words_and_loses_its_password() -> None:
    assert redact_urls(f"/runs/{TOKENS[0]}/token=abcdef") == f"/runs/{TOKENS[0]}/token=abcdef"
    assert redact_urls("https://me:secret@host/x") == "https://***@host/x"
    assert redact_urls("my_module:My_Place://me:secret@host") == "my_module:My_Place://***@host"


def test_shapes_alone_leave_assignments() -> None:
    assert redact_shapes("token = something") == "token = something"


def test_a_log_line_and_its_traceback_hold_no_secret() -> None:
    secret = "hf_" + "a1B2" * 9
    try:
        raise ConnectionError(f"401 for {secret}")
    except ConnectionError:
        record = logging.LogRecord("x", 30, "x.py", 1, "as %s", (secret,), sys.exc_info())
    record.stack_info = f"Stack: {secret}"
    text = RedactingFormatter("%(message)s").format(record)
    assert secret not in text
    assert text.count("***") == 3
    assert record.getMessage() == f"as {secret}", "other handlers have the record, too"
    plain = logging.Formatter("%(message)s").format(record)  # keeps the traceback in the record
    assert secret in plain
    assert secret not in RedactingFormatter("%(message)s").format(record)
    record.name = secret
    assert RedactingFormatter("%(name)s").format(record).startswith("***")


def test_a_name_that_leads_up_to_a_token() -> None:
    assert redact("eval_hf_" + "a1B2" * 9) == "eval_***"
