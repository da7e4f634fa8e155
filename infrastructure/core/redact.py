"""Masking of secrets in text and mappings before they reach a log, a file or a screen.

It recognizes tokens by their shape (Hugging Face, GitHub, OpenAI-like, AWS, Slack, Google),
passwords in URLs, and values whose key suggests a secret. A token has to be long and to contain
digits or capitals, because a name such as `hf_datasets` is not a secret. So a secret that looks
like a word is not recognized.
"""

import logging
import re
from collections.abc import Mapping
from types import TracebackType

# The type that `sys.exc_info` returns.
ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)
MASK = "***"
_SECRET_KEY = re.compile(
    r"token|secret|passw|api_?key|access_?key|private_?key|credential|webhook", re.IGNORECASE
)
# Terms of language models that are not secret: bos_token, num_tokens, tokenizer, token_type_ids.
_HARMLESS_KEY = re.compile(
    r"(bos|eos|pad|unk|mask|sep|cls|special|image)_token|tokens\b|tokens_|tokeniz|token_(id|type)",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    # Hugging Face's tokens are only letters; capitals distinguish them from words.
    # A name may precede a token: eval_hf_…
    r"(?<![A-Za-z0-9])"
    r"(?:hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{20,}|gh[pousr]_(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}"
    r"|github_pat_(?=[A-Za-z_]*\d)\w{20,}|glpat-(?=[A-Za-z_-]*[A-Z0-9])[\w-]{20,}"
    r"|sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{20,}|xox[abprs]-(?=[A-Za-z_-]*\d)[\w-]{20,}"
    r"|AKIA[A-Z0-9]{16}|AIza(?=[A-Za-z_-]*\d)[\w-]{30,}|DEV-[0-9a-f]{20,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
# One slash too, as in `Path("https://me:pw@host")`; up to the last @, as passwords may contain one.
_URL_USER = re.compile(r"(?P<start>\b[a-z][a-z0-9+._-]+:/{1,2})[^\s/]+@", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?P<key>\b[\w-]*(?:token|secret|password|passwd|api_?key|access_?key)[\w-]*)"
    r"(?P<sign>\s*[=:]\s*)(?P<value>[^\s,;&\"']{6,})",
    re.IGNORECASE,
)


class RedactingFormatter(logging.Formatter):
    """A formatter of log lines that masks secrets, also in tracebacks.

    If a logger's name ends in a word like `token` (`transformers.token: text`), the text after it
    is not masked for that reason.
    """

    def format(self, record: logging.LogRecord) -> str:
        shown = logging.makeLogRecord(record.__dict__)
        shown.msg, shown.args = redact(record.getMessage()), None
        if record.exc_text:  # from another formatter, which masks nothing
            shown.exc_text = redact(record.exc_text)
        return redact_shapes(super().format(shown))

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802
        return redact(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return redact(super().formatStack(stack_info))


def is_secret_key(key: str) -> bool:
    """Return whether a key (`HF_TOKEN`, `api_key`) suggests that its value is secret."""
    return bool(_SECRET_KEY.search(key)) and not _HARMLESS_KEY.search(key)


def redact(text: str) -> str:
    """Return `text` with tokens, URL passwords and `secret=value` masked, for logs and messages."""
    return _ASSIGNED.sub(_mask_assigned, redact_shapes(text))


def redact_shapes(text: str) -> str:
    """Return `text` with only tokens and URL passwords masked, recognized by their form."""
    return _TOKEN.sub(MASK, redact_urls(text))


def redact_urls(text: str) -> str:
    """Return `text` with only the user and password of each URL masked. Use this for paths."""
    return _URL_USER.sub(rf"\g<start>{MASK}@", text)


def public_address(address: str) -> str:
    """Return an address without user, password, query and fragment, and with tokens masked."""
    scheme, _, rest = address.partition(":")
    shown = rest.strip("/").split("?")[0].split("#")[0]
    server, _, path = shown.partition("/")
    return redact_shapes(f"{scheme}://{server.rpartition('@')[2]}/{path}")


def redact_mapping(values: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of `values` with secret values masked, at any depth of mappings and lists."""
    return {key: MASK if _hide(key, value) else _redact_any(value) for key, value in values.items()}


def _hide(key: str, value: object) -> bool:
    return isinstance(value, str) and value != "" and is_secret_key(str(key))


def _redact_any(value: object) -> object:
    if isinstance(value, str):
        return redact_shapes(value)
    if isinstance(value, Mapping):
        return redact_mapping(value)
    if isinstance(value, list | tuple):
        return [_redact_any(item) for item in value]
    return value


def _mask_assigned(match: re.Match[str]) -> str:
    if not is_secret_key(match["key"]):
        return match[0]
    return f"{match['key']}{match['sign']}{MASK}"
