"""llama.cpp's converter is found, tried, and named where it cannot be."""

from pathlib import Path

import pytest

from infrastructure.features.export_gguf.converter import find_converter


def test_a_converter_that_does_not_run_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("LLAMA_CPP_DIR", str(tmp_path))
    script = tmp_path / "convert_hf_to_gguf.py"
    script.write_text("import a_package_that_nobody_has")
    with pytest.raises(ValueError, match=r"export_gguf\.converter_does_not_run"):
        find_converter().check("LlamaForCausalLM", None)
    script.write_text("print('- LlamaForCausalLM')")
    find_converter().check("LlamaForCausalLM", 8)
    with pytest.raises(
        ValueError,
        match=r"export_gguf\.converter_lacks_architecture.*architecture=MambaForCausalLM",
    ):
        find_converter().check("MambaForCausalLM", 8)
    with pytest.raises(ValueError, match=r"export_gguf\.quantizer_missing"):
        find_converter().check("LlamaForCausalLM", 4)
