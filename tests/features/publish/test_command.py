"""`temper export RUN --push-to-hub OWNER/NAME`, to a Hub on this machine."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from safetensors.torch import load_file

from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.checksums import damaged_files, write_record
from infrastructure.core.errors import DamagedFileError
from infrastructure.core.exit_codes import ExitCode
from infrastructure.features.publish.model_card import BEGIN, END
from infrastructure.features.publish.repository import ModelRepository
from infrastructure.run.directory import RunDirectory
from tests.backup.backends.hub_server import TOKEN, Hub, running_hub
from tests.deployment.runs import deploy, small_config, small_settings

pytestmark = [
    # of huggingface_hub's own upload
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
]
REPO = "models/me/tiny"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as running:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", running.url)
        template = f"{running.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield running
    huggingface_hub.close_session()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy(small_config(tmp_path_factory.mktemp("trained"), max_steps=2, warmup_steps=5))[0]


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(trained, tmp_path / "runs" / trained.name))


def push(*arguments: str) -> int:
    return main(["export", *arguments, "--push-to-hub", "me/tiny"])


def test_a_finished_run_is_published_as_it_is(
    run: Path, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of `final/`, privately, whole where somebody downloads it, with the facts of the run."""
    capsys.readouterr()
    assert push(str(run), "--json") == ExitCode.DONE
    out, error = capsys.readouterr()
    facts = json.loads(out)
    assert error == ""  # no bars in what is no terminal
    assert facts == {
        **{"run": run.name, "step": 2, "repository": "me/tiny", "url": f"{hub.url}/me/tiny"},
        **{"private": True, "files": len(hub.repos[REPO])},
        "notes": ["publish.published_private()", "publish.card_without_license()"],
    }
    assert hub.public == set()
    assert hub.commits() == 1
    files = hub.repos[REPO]
    assert files.keys() == {path.name for path in (run / "final").iterdir()} | {"README.md"}
    for name, data in files.items():
        (tmp_path / "down").mkdir(exist_ok=True)
        (tmp_path / "down" / name).write_bytes(data)
    assert damaged_files(tmp_path / "down") == []
    assert (run / "final/model.safetensors").read_bytes() == files["model.safetensors"]
    card = files["README.md"].decode()
    record = json.loads((run / "run.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    assert record["data"]["fingerprint"] not in card  # short rows can be guessed from a hash
    assert f"| rows | publish.card_rows(num_train={record['data']['num_train']:,}, " in card
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    peak = max(one.get("learning_rate", 0) for one in records)
    assert f"`learning_rate` {peak}" in card  # the setting is "auto"
    assert "`warmup_steps` 1," in card  # half of the steps at most
    assert f"{summary['after']['eval_loss']:.4g}"[:4] in card
    assert 'from_pretrained("me/tiny")' in card
    assert str(tmp_path) not in card
    assert "license" not in huggingface_hub.ModelCard(card).data.to_dict()


def test_what_people_wrote_on_the_card_stays_and_old_weights_go(
    run: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(str(run)) == ExitCode.DONE
    files = hub.repos[REPO]
    card = files["README.md"].decode().replace("tags:", "license: mit\ntags:")
    mine = f"{card.partition(BEGIN)[0]}Mine.\n\n{BEGIN}\nold facts\n{END}\n\nAlso mine.\n"
    gone = {"model-00001-of-00002.safetensors", "adapter_config.json", "a.safetensors.index.json"}
    kept = {"base/config.json", "notes.json", "a.gguf", "b.safetensors.json"}
    files |= {"README.md": mine.encode(), **dict.fromkeys(gone | kept, b"of before")}
    capsys.readouterr()
    assert push(f"{run.name}@1", "--json") == ExitCode.DONE
    facts = json.loads(capsys.readouterr().out)
    assert (facts["run"], facts["step"], "folder" in facts) == (run.name, 1, False)
    card = hub.repos[REPO]["README.md"].decode()
    assert "Mine." in card
    assert "Also mine." in card
    assert "old facts" not in card
    assert huggingface_hub.ModelCard(card).data.license == "mit"
    assert "| steps | 1 of 2 |" in card
    assert "publish.card_checkpoint_not_measured" in card
    assert (gone | kept) & hub.repos[REPO].keys() == kept


def test_a_public_one_is_made_and_a_private_one_stays(
    run: Path, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(str(run), "model", "--public") == ExitCode.DONE
    assert hub.public == {REPO}
    assert (tmp_path / "model/model.safetensors").is_file()
    out = capsys.readouterr().out.splitlines()
    uploaded = f"publish.model_on_hub(step=2, run_id={run.name}, url={hub.url}/me/tiny)"
    assert out[out.index(uploaded) :] == [
        *(uploaded, "  publish.published_public()", "  publish.card_without_license()")
    ]
    assert push(str(run)) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "publish.published_public" in out
    assert "publish.visibility_unchanged" in out
    hub.public.clear()  # by hand, on its page
    assert push(str(run), "--public") == ExitCode.DONE
    out = capsys.readouterr().out
    assert "publish.published_private" in out
    assert "publish.visibility_unchanged" in out
    assert hub.public == set()


def test_a_lora_names_its_base(
    saved_llama: Path,
    hub: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = small_settings(tmp_path, max_steps=1)
    settings["model"] = {"name": str(saved_llama), "lora_config": {"r": 2}}
    run, _ = deploy(DeploymentConfig(**settings))
    assert push(str(run)) == ExitCode.DONE
    assert "publish.published_lora_local_base" in capsys.readouterr().out
    card = hub.repos[REPO]["README.md"].decode()
    assert "publish.card_trained_lora(rank=2)" in card
    assert "PeftModel" in card
    assert huggingface_hub.ModelCard(card).data.library_name == "peft"
    assert str(saved_llama) not in card
    (tmp_path / "a.safetensors").write_bytes(hub.repos[REPO]["adapter_model.safetensors"])
    assert load_file(tmp_path / "a.safetensors").keys()
    sums = hub.repos[REPO]["SHA256SUMS"].decode()
    assert "adapter_config.json" in sums
    assert "README.md" not in sums


@pytest.mark.parametrize(
    ("token", "failing", "message"),
    [
        (None, {}, "backup.hub_token_missing"),
        ("hf_other", {}, "backup.hub_token_rejected"),
        (TOKEN, {"create": 403}, "backup.hub_token_lacks_permission(repo_id=me/tiny)"),
        (TOKEN, {"/commit/": 500}, "backup.hub_returned_server_error"),
    ],
)
def test_a_refusal_is_one_sentence(
    token: str | None,
    failing: dict[str, int],
    message: str,
    run: Path,
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: token)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.failing = failing
    capsys.readouterr()
    is_fault_of_hub = 500 in failing.values()
    assert push(str(run)) == (ExitCode.FAILED if is_fault_of_hub else ExitCode.WRONG_INPUT)
    out, error = capsys.readouterr()
    assert out == ""
    assert message in error
    assert error.count("\n") == 1
    assert hub.repos.get(REPO, {}) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--push-to-hub", "a/b/c"], "publish.invalid_repository_name(name=a/b/c)"),
        ([], "commands.no_export_target"),
        (["folder", "--public"], "publish.public_without_push_to_hub"),
        (["--push-to-hub", "tiny"], "publish.invalid_repository_name(name=tiny)"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), *arguments]) == ExitCode.WRONG_INPUT
    assert message in capsys.readouterr().err


def test_weights_that_others_would_miss_are_not_published(
    run: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((run / "run.json").read_text())
    record.pop("checksum")
    record["model"]["extensions"] = {"memory": {}, "tower": {}}
    write_record(run / "run.json", record)
    assert push(str(run)) == ExitCode.WRONG_INPUT
    refused = f"publish.extension_weights(run_id={run.name}, extensions=memory, tower"
    assert refused in capsys.readouterr().err
    assert hub.repos == {}


def test_a_damaged_model_is_not_published(run: Path, hub: Hub) -> None:
    (run / "final/config.json").write_text("{}")
    repository = ModelRepository("https://huggingface.co/me/tiny/")
    repository.make()
    damaged = rf"published_folder_damaged\(folder={run}/final, files=.*config\.json"
    with pytest.raises(DamagedFileError, match=damaged):
        repository.upload(run / "final", RunDirectory(run), 2)
    assert [ModelRepository(f"{kind}me/tiny").name for kind in ("", "hf://")] == ["me/tiny"] * 2
    assert hub.repos == {REPO: {}}
