"""Access to secret tokens and addresses, which are never shown.

Temper looks for them in the environment, in the file that `hf auth login` writes, and in Colab's
secrets (the key at the left edge of its page). Only Colab's own page answers a request for its
secrets. Elsewhere the request stays open for ten seconds, so it is made only once in a session.
"""

import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from colab.runtime import has_browser
from infrastructure.core.errors import InputError, MissingSecretError
from infrastructure.core.messages import phrase

HF_TOKEN = "HF_TOKEN"
SECRETS = (HF_TOKEN, "ALERT_WEBHOOK_URL")
ENVIRONMENT, TOKEN_FILE, COLAB, MISSING = "environment", "token file", "Colab secrets", "not set"


@dataclass(frozen=True)
class SecretLookup:
    """The result of looking for a secret. The secret's value is not part of the object's text.

    Attributes:
        place: `environment`, `token file`, `Colab secrets`, or `not set`.
        why: the reason from Colab if the secret is missing.
    """

    name: str
    place: str
    why: str = ""
    value: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.place}" + (f" ({self.why})" if self.why else "")


@dataclass
class _Colab:
    """The state of the access to Colab's secrets in this session."""

    silent: str = ""  # why no more requests are made


_colab = _Colab()


def get_secret(name: str) -> str:
    """Return the value of a secret, such as `get_secret("HF_TOKEN")`.

    Raises:
        MissingSecretError: if the secret was not found; the message says where it can be set.
        ValueError: if `name` is not a valid name of a secret.
    """
    secret = find_secret(name)
    if secret.place == MISSING:
        why = f" ({secret.why})" if secret.why else ""
        raise MissingSecretError("notebook.secret_not_found", name=name, reason=why)
    return secret.value


def bring_secrets(names: Iterable[str] = SECRETS) -> list[SecretLookup]:
    """Copy the secrets that only Colab has into `os.environ`, where libraries look for them.

    A missing secret is reported in the result but is not an error, because most runs need none.
    """
    secrets = [find_secret(name) for name in names]
    for secret in secrets:
        if secret.place == COLAB:
            os.environ[secret.name] = secret.value
    return secrets


def find_secret(name: str) -> SecretLookup:
    """Look for a secret.

    Raises:
        ValueError: if `name` is not a valid name of a secret.
    """
    if not name or any(letter.isspace() or letter == "=" for letter in name):
        raise InputError("notebook.not_a_secret_name", name=name)
    if value := os.environ.get(name, "").strip():
        return SecretLookup(name, ENVIRONMENT, value=value)
    if name == HF_TOKEN and (value := _of_token_file()):
        return SecretLookup(name, TOKEN_FILE, value=value)
    return _of_colab(name)


def _of_token_file() -> str:
    """Return the token that `hf auth login` wrote to the path that huggingface_hub documents."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.environ.get("HF_HOME") or f"{home}/huggingface"
    path = Path(os.environ.get("HF_TOKEN_PATH") or f"{folder}/token").expanduser()
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):  # it is one of several places
        return ""


def _of_colab(name: str) -> SecretLookup:
    if not has_browser():
        return SecretLookup(name, MISSING)
    if _colab.silent:
        return SecretLookup(name, MISSING, _colab.silent)
    try:
        userdata = importlib.import_module("google.colab.userdata")
        value = str(userdata.get(name) or "").strip()
    except Exception as error:  # NotebookAccessError is not an errors.Error; others exist
        return SecretLookup(name, MISSING, _why(error))
    if not value:
        return SecretLookup(name, MISSING, phrase("notebook.colab_secret_empty"))
    return SecretLookup(name, COLAB, value=value)


def _why(error: Exception) -> str:
    """Return an explanation of Colab's error, without its message, which may contain secrets."""
    kind = type(error).__name__
    if kind == "SecretNotFoundError":
        return phrase("notebook.colab_secret_missing")
    if kind == "NotebookAccessError":
        return phrase("notebook.colab_secret_not_granted")
    if kind == "TimeoutException":
        _colab.silent = phrase("notebook.colab_page_not_responding")
        return _colab.silent
    _colab.silent = phrase("notebook.colab_secrets_unavailable", error=kind)
    return _colab.silent
