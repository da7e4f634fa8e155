"""Exports as GGUF: read back as what was trained, or refused before any work."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.optional import is_installed
from infrastructure.deployment import export_request
from infrastructure.deployment.export import export_model
from infrastructure.deployment.export_request import ExportRequest, needed_bytes
from infrastructure.features.export_gguf import gguf_format
from infrastructure.run.directory import RunDirectory
from tests.deployment.exports import TEMPLATE, facts_of
from tests.deployment.runs import deploy, small_config, small_settings
from tests.slow import slow

HALF: dict[str, Any] = {"num_parameters": 1_000_000, "dtype": "bfloat16"}
WHOLE = {**HALF, "dtype": "float32"}
LLAMA_CPP = os.environ.get("LLAMA_CPP_DIR")


def test_no_converter_is_refused_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(deploy(small_config(tmp_path, max_steps=1))[0])
    if not is_installed("gguf"):
        pytest.skip("gguf is not installed")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LLAMA_CPP_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("infrastructure.deployment.export._load", None)
    with pytest.raises(
        ValueError, match=r"export_gguf\.converter_missing.*folder_variable=LLAMA_CPP_DIR"
    ):
        export_model(run, None, tmp_path / "out", ExportRequest(form="gguf"))


@pytest.mark.parametrize("has_llama_cpp", [True, False])
def test_the_file_is_read_back_by_each_library_that_is_there(
    has_llama_cpp: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries are stand-ins with the same signatures."""
    calls: list[object] = []

    class Llama:
        def __init__(self, file: str, n_ctx: int, logits_all: bool, verbose: bool) -> None:
            calls.append((Path(file).name, n_ctx, logits_all, verbose))
            self.scores = np.zeros((n_ctx, 2), dtype=np.float16)

        def eval(self, ids: list[int]) -> None:
            self.scores[: len(ids), 0] = ids

        def tokenize(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
            return [int(add_bos), int(special), len(text)]

        def reset(self) -> None:
            calls.append("reset")

        def close(self) -> None:
            calls.append("close")

    def convert(whole: Path, file: Path, bits: int | None) -> None:
        calls.append((json.loads((whole / "tokenizer_config.json").read_text()), bits))
        file.touch()

    @contextmanager
    def whole_model(folder: Path) -> Iterator[Path]:
        (folder / "whole").mkdir()
        (folder / "whole/tokenizer_config.json").write_text('{"add_eos_token": true, "x": 1}')
        yield folder / "whole"

    def from_pretrained(folder: Path, gguf_file: str) -> str:
        return f"{folder.name}/{gguf_file}"

    installed = {"__spec__": SimpleNamespace(name="llama_cpp"), "Llama": Llama}
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(**installed))
    monkeypatch.setattr(gguf_format, "is_installed", lambda name: has_llama_cpp)
    monkeypatch.setattr(gguf_format, "find_converter", lambda: SimpleNamespace(convert=convert))
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", from_pretrained)
    prompts = [torch.tensor([[7, 1]])]
    work: Any = SimpleNamespace(
        tokenizer=SimpleNamespace(bos_token_id=7 if has_llama_cpp else 1),
        compare=SimpleNamespace(reference=SimpleNamespace(prompts=prompts)),
        request=SimpleNamespace(bits=8),
        whole_model=whole_model,
        logits_of=lambda model: lambda ids: model,
        questions=lambda: ["é"],
        as_text=lambda turns: "".join(turn.text for turn in turns) if has_llama_cpp else "",
        notes=[],
        ends=["</s>"],
    )
    readings = gguf_format.GgufFormat().write(work, tmp_path)
    first = next(readings)
    assert (first.by, first.prompts) == ("transformers (gguf_file)", None)
    assert str(first.logits(prompts[0])) == f"{tmp_path.name}/model.gguf"
    begins = {"add_eos_token": False, "x": 1, "add_bos_token": has_llama_cpp}
    assert calls == [(begins, 8)]
    for reading in readings:
        assert reading.by == "llama.cpp"
        assert reading.prompts is not None
        assert [one.tolist() for one in reading.prompts] == [[[1, 1, 2]]]
        logits = reading.logits(torch.tensor([[3, 4]]))
        assert (logits.dtype, logits.tolist()) == (torch.float32, [[3, 0], [4, 0]])
    notes, modelfile = work.notes, tmp_path / "Modelfile"
    if has_llama_cpp:
        assert calls[1:] == [("model.gguf", 64, True, False), "reset", "close"]
        assert notes == ["export_gguf.ollama_command(file=Modelfile)"]
        assert modelfile.read_text().startswith("FROM ./model.gguf\n")
        assert modelfile.read_text().endswith('PARAMETER stop "</s>"\n')
    else:
        assert notes == [
            "export_gguf.not_checked_in_llama_cpp()",
            "export_gguf.no_modelfile_for_template()",
        ]
        assert not modelfile.exists()
    work.tokenizer = None
    with pytest.raises(ValueError, match=r"export_gguf\.needs_tokenizer"):
        next(gguf_format.GgufFormat().write(work, tmp_path))


def test_the_format_is_checked_for_the_architecture_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[tuple[str, int | None]] = []
    converter = SimpleNamespace(check=lambda *given: checked.append(given))
    monkeypatch.setattr(gguf_format, "find_converter", lambda: converter)
    gguf_format.GgufFormat().check({"architecture": "Llama"}, 8)
    gguf_format.GgufFormat().check({}, None)
    assert checked == [("Llama", 8), ("", None)]


@slow
@pytest.mark.skipif(LLAMA_CPP is None, reason="LLAMA_CPP_DIR names no llama.cpp")
@pytest.mark.filterwarnings("ignore")  # of transformers' reader
@pytest.mark.parametrize("bits", [None, 16, 8])
def test_gguf_is_read_back_by_llama_cpp(
    bits: int | None, known_llama: RunDirectory, tmp_path: Path
) -> None:
    request = ExportRequest(bits=bits, form="gguf")
    exported = export_model(known_llama, None, tmp_path / "out", request)
    facts = facts_of(tmp_path / "out")
    readers = [one["read_by"] for one in facts["compared"]]
    assert readers[0] == "transformers (gguf_file)"
    if is_installed("llama_cpp"):
        assert readers[1] == "llama.cpp"
        assert facts["compared"][1]["same_prompt"] is True
    assert (tmp_path / "out" / "model.gguf").stat().st_size > 10_000
    assert "<|assistant|>" in (tmp_path / "out" / "Modelfile").read_text()
    assert any("export_gguf.ollama_command(" in note for note in exported["notes"])


@pytest.fixture(scope="module")
def known_llama(saved_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A trained Llama with a tokenizer that llama.cpp's converter knows: bytes fall back, as
    SentencePiece's do."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("known")
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    special = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    tokenizer.train_from_iterator(  # letters alone: pairs would need scores
        ["Reverse 123", "What is the capital of France?"],
        trainers.BpeTrainer(vocab_size=260, special_tokens=special, show_progress=False),
    )
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    wrapped.pad_token = "</s>"
    model = AutoModelForCausalLM.from_pretrained(saved_llama)
    model.resize_token_embeddings(len(wrapped))
    model.save_pretrained(folder / "model")
    wrapped.save_pretrained(folder / "model")
    settings = small_settings(folder, num_epochs=1)
    settings["model"] = {"name": str(folder / "model")}
    settings["data"]["chat_template"] = TEMPLATE
    run, _ = deploy(DeploymentConfig(**settings))
    return RunDirectory(run)


@pytest.mark.parametrize(
    ("model", "bits", "expected"),
    [
        (WHOLE, None, 4_000_000 + 2_000_000),
        (HALF, None, 2_000_000 + 2_000_000),
        (WHOLE, 8, 2_000_000 + 1_000_000),
        ({**HALF, "lora": {"r": 8}}, 4, 2_000_000 + 500_000),
    ],
)
def test_the_file_and_the_folder_that_it_is_made_of_need_space(
    model: dict[str, Any], bits: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_request, "refuse_missing", lambda *_: None)
    assert needed_bytes(model, ExportRequest(bits=bits, form="gguf")) == expected + 125_000
