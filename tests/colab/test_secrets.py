"""Secrets are found in three places, wait once, and are shown nowhere."""

import os
from pathlib import Path

import pytest

from colab.secrets import SecretLookup, bring_secrets, find_secret, get_secret
from infrastructure.core.errors import MissingSecretError
from tests.fakes.google_colab import ColabSession

PLANTED = "correct horse battery staple"  # no mask knows this by its shape


@pytest.fixture(autouse=True)
def no_secrets_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file returned is where `hf auth login` would write."""
    for name in ("HF_TOKEN", "ALERT_WEBHOOK_URL", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    return tmp_path / "token"


def give(session: ColabSession, **secrets: str) -> None:
    session.behaves(secrets={name: {"payload": value} for name, value in secrets.items()})


def test_the_environment_comes_first(
    colab_session: ColabSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(colab_session, HF_TOKEN="of colab")
    monkeypatch.setenv("HF_TOKEN", f" {PLANTED}\n")
    assert get_secret("HF_TOKEN") == PLANTED
    assert colab_session.calls("get") == []


def test_then_the_token_file(colab_session: ColabSession, no_secrets_of_this_machine: Path) -> None:
    give(colab_session, HF_TOKEN="of colab")
    no_secrets_of_this_machine.write_text(f"{PLANTED}\n")
    assert get_secret("HF_TOKEN") == PLANTED
    assert find_secret("HF_TOKEN").place == "token file"
    assert colab_session.calls("get") == []


@pytest.mark.parametrize(
    ("variable", "below"), [("HF_HOME", "token"), ("XDG_CACHE_HOME", "huggingface/token")]
)
def test_the_token_file_lies_where_its_library_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, below: str
) -> None:
    monkeypatch.delenv("HF_TOKEN_PATH")
    monkeypatch.setenv(variable, str(tmp_path / "home"))
    (tmp_path / "home" / below).parent.mkdir(parents=True)
    (tmp_path / "home" / below).write_text(PLANTED)
    assert get_secret("HF_TOKEN") == PLANTED


def test_then_colab_s_own(colab_session: ColabSession) -> None:
    give(colab_session, MY_KEY=PLANTED)
    assert get_secret("MY_KEY") == PLANTED


def test_only_what_colab_alone_has_is_brought(
    colab_session: ColabSession, monkeypatch: pytest.MonkeyPatch, no_secrets_of_this_machine: Path
) -> None:
    monkeypatch.setenv("ALERT_WEBHOOK_URL", "")  # so that it is put back
    no_secrets_of_this_machine.write_text("in the file")
    give(colab_session, ALERT_WEBHOOK_URL=PLANTED)
    found = bring_secrets()
    assert [str(secret) for secret in found] == [
        "HF_TOKEN: token file",
        "ALERT_WEBHOOK_URL: Colab secrets",
    ]
    assert os.environ["ALERT_WEBHOOK_URL"] == PLANTED
    assert "HF_TOKEN" not in os.environ
    assert [secret.place for secret in bring_secrets()] == ["token file", "environment"]


SECRET_REFUSALS = [
    ({"page_answers": False}, "notebook.colab_page_not_responding"),
    ({"secrets": {}}, "notebook.colab_secret_missing"),
    ({"secrets": {"HF_TOKEN": {"access": False}}}, "notebook.colab_secret_not_granted"),
    ({"secrets": {"HF_TOKEN": {"payload": " "}}}, "notebook.colab_secret_empty"),
    ({"kernel": "broken"}, "notebook.colab_secrets_unavailable(error=AttributeError)"),
]


@pytest.mark.parametrize(("failure", "sentence"), SECRET_REFUSALS)
def test_a_refusal_is_one_sentence_and_no_error_of_the_notebook(
    colab_session: ColabSession, failure: dict[str, object], sentence: str
) -> None:
    colab_session.behaves(**failure)
    (found,) = bring_secrets(["HF_TOKEN"])
    assert found.place == "not set"
    assert sentence in found.why
    with pytest.raises(
        MissingSecretError, match=r"notebook\.secret_not_found\(name=HF_TOKEN, reason= \("
    ):
        get_secret("HF_TOKEN")


def test_a_page_that_does_not_answer_is_waited_for_once(colab_session: ColabSession) -> None:
    colab_session.behaves(page_answers=False)
    bring_secrets()
    bring_secrets()
    assert len(colab_session.calls("get")) == 1


def test_access_that_is_given_later_counts(colab_session: ColabSession) -> None:
    colab_session.behaves(secrets={"HF_TOKEN": {"access": False, "payload": PLANTED}})
    assert find_secret("HF_TOKEN").place == "not set"
    give(colab_session, HF_TOKEN=PLANTED)
    assert find_secret("HF_TOKEN").place == "Colab secrets"


def test_where_there_is_no_page_nothing_is_read(
    colab_session: ColabSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPER_PLATFORM", "notebook")
    assert find_secret("HF_TOKEN") == SecretLookup("HF_TOKEN", "not set")
    assert colab_session.calls("get") == []


@pytest.mark.parametrize("name", ["", "MY KEY", "A=B"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"notebook\.not_a_secret_name\("):
        get_secret(name)


def test_no_text_of_what_was_found_holds_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", PLANTED)
    found = find_secret("HF_TOKEN")
    assert found.value == PLANTED
    assert PLANTED not in f"{found} {found!r} {[found]}"
