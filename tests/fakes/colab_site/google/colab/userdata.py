import re
import time

from google.colab import _state, errors


class NotebookAccessError(Exception):
    def __init__(self, key):
        super().__init__(f"Notebook does not have access to secret {key}")


class SecretNotFoundError(errors.Error):
    def __init__(self, key):
        super().__init__(f"Secret {key} does not exist.")


class TimeoutException(errors.Error):
    def __init__(self, key):
        super().__init__(
            f"Requesting secret {key} timed out. Secrets can only be fetched when running from the"
            " Colab UI."
        )


def get(key):
    """The real one waits 10 s for a page that does not answer."""
    _state.note("get", key=key)
    if not key or not isinstance(key, str):
        raise ValueError("Please enter a valid secret name")
    if re.search(r"\s", key):
        raise ValueError("Secret name cannot contain spaces or whitespace")
    if not _state.behaviour("page_answers", True):
        time.sleep(_state.behaviour("page_wait_seconds", 0.0))
        raise TimeoutException(key)
    if _state.behaviour("kernel", "") == "broken":
        raise AttributeError("'NoneType' object has no attribute 'kernel'")
    secret = _state.behaviour("secrets", {}).get(key)
    if secret is None:
        raise SecretNotFoundError(key)
    if not secret.get("access", True):
        raise NotebookAccessError(key)
    return secret.get("payload", "")
