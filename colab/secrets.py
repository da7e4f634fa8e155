"""Tokens and addresses that nobody else may see: found, given to who needs them, never shown.

They are looked for in the environment, in the file that `hf auth login` writes, and in Colab's
secrets (the key at the left edge of its page). Only Colab's own page answers that last question;
elsewhere it is left open for ten seconds, so that is waited for once in a session.
"""

import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from colab.runtime import has_browser
from infrastructure.core.errors import MissingSecretError
from infrastructure.core.messages import phrase

HF_TOKEN = "HF_TOKEN"
SECRETS = (HF_TOKEN, "ALERT_WEBHOOK_URL")
ENVIRONMENT, TOKEN_FILE, COLAB, MISSING = "environment", "token file", "Colab secrets", "not set"


@dataclass(frozen=True)
class SecretLookup:
    """Where a secret was looked for: its value is in no text of this.

    Attributes:
        place: `environment`, `token file`, `Colab secrets`, or `missing`.
        why: where it is missing, what Colab said.
    """

    name: str
    place: str
    why: str = ""
    value: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.place}" + (f" ({self.why})" if self.why else "")


@dataclass
class _Colab:
    """What is known of Colab's secrets in this session."""

    silent: str = ""  # why nothing is asked any more


_colab = _Colab()


def get_secret(name: str) -> str:
    """The value of a secret, such as `get_secret("HF_TOKEN")`.

    Raises:
        MissingSecretError: it is nowhere; says where it can be put.
        ValueError: `name` can be no secret's name.
    """
    secret = find_secret(name)
    if secret.place == MISSING:
        why = f" ({secret.why})" if secret.why else ""
        raise MissingSecretError(
            f"{name} is nowhere{why}: add it under the key at the left edge of Colab and give this"
            f" notebook access, or set the variable {name} before the notebook starts"
        )
    return secret.value


def bring_secrets(names: Iterable[str] = SECRETS) -> list[SecretLookup]:
    """Put the secrets that only Colab has into `os.environ`, where libraries look for them.

    What is missing is told and no error: most trainings need none.
    """
    secrets = [find_secret(name) for name in names]
    for secret in secrets:
        if secret.place == COLAB:
            os.environ[secret.name] = secret.value
    return secrets


def find_secret(name: str) -> SecretLookup:
    """Look for a secret.

    Raises:
        ValueError: `name` can be no secret's name.
    """
    if not name or any(letter.isspace() or letter == "=" for letter in name):
        raise ValueError(f"a secret has a name such as HF_TOKEN, not {name!r}")
    if value := os.environ.get(name, "").strip():
        return SecretLookup(name, ENVIRONMENT, value=value)
    if name == HF_TOKEN and (value := _of_token_file()):
        return SecretLookup(name, TOKEN_FILE, value=value)
    return _of_colab(name)


def _of_token_file() -> str:
    """What `hf auth login` has written; where, huggingface_hub documents."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.environ.get("HF_HOME") or f"{home}/huggingface"
    path = Path(os.environ.get("HF_TOKEN_PATH") or f"{folder}/token").expanduser()
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):  # it is one place of several
        return ""


def _of_colab(name: str) -> SecretLookup:
    if not has_browser():
        return SecretLookup(name, MISSING)
    if _colab.silent:
        return SecretLookup(name, MISSING, _colab.silent)
    try:
        userdata = importlib.import_module("google.colab.userdata")
        value = str(userdata.get(name) or "").strip()
    except Exception as error:  # NotebookAccessError is no errors.Error, and others come from below
        return SecretLookup(name, MISSING, _why(error))
    if not value:
        return SecretLookup(name, MISSING, phrase("notebook.colab_secret_empty"))
    return SecretLookup(name, COLAB, value=value)


def _why(error: Exception) -> str:
    """What Colab's refusal means. Its own words are not repeated: nobody knows what they hold."""
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
