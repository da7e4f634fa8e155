"""llama.cpp's converter is found, tried, and named where it cannot be."""

from pathlib import Path

import pytest

from infrastructure.deployment.gguf_converter import find_converter


def test_a_converter_that_does_not_run_is_explained(tmp_path: Path) -> None:
    script = tmp_path / "convert_hf_to_gguf.py"
    script.write_text("import a_package_that_nobody_has")
    with pytest.raises(ValueError, match=r"deployment\.converter_does_not_run"):
        find_converter(tmp_path).check("LlamaForCausalLM", None)
    script.write_text("print('- LlamaForCausalLM')")
    find_converter(script).check("LlamaForCausalLM", 8)
    with pytest.raises(
        ValueError, match=r"deployment\.converter_lacks_architecture.*architecture=MambaForCausalLM"
    ):
        find_converter(script).check("MambaForCausalLM", 8)
    with pytest.raises(ValueError, match=r"deployment\.gguf_quantizer_missing"):
        find_converter(script).check("LlamaForCausalLM", 4)
