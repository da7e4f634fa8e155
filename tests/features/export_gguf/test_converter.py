"""llama.cpp's converter is found, tried, and named where it cannot be."""

import re
from pathlib import Path

import pytest

from infrastructure.features.export_gguf.converter import Converter, find_converter


def test_a_converter_that_does_not_run_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("LLAMA_CPP_DIR", str(tmp_path))
    script = tmp_path / "convert_hf_to_gguf.py"
    script.write_text("import a_package_that_nobody_has")
    refused = rf"converter_does_not_run\(script={script}, reason=ModuleNotFoundError: .*nobody_has'"
    with pytest.raises(ValueError, match=refused):
        find_converter().check("LlamaForCausalLM", None)
    script.write_text("print('- LlamaForCausalLM')")
    find_converter().check("LlamaForCausalLM", 8)
    with pytest.raises(
        ValueError,
        match=r"export_gguf\.converter_lacks_architecture.*architecture=MambaForCausalLM",
    ):
        find_converter().check("MambaForCausalLM", 8)
    missing = rf"quantizer_missing\(quantizer=llama-quantize, script={script}\)"
    with pytest.raises(ValueError, match=missing):
        find_converter().check("LlamaForCausalLM", 4)
    script.write_text("import sys; sys.stderr.write('  - LlamaForCausalLM\\n  - Llama')")
    for architecture in ("", "Llama"):
        find_converter().check(architecture, None)
    with pytest.raises(ValueError, match="converter_lacks_architecture"):
        find_converter().check("ForCausalLM", None)


SCRIPT = """
import os, sys
model, *options = sys.argv[1:]
assert "PYTHONPATH" not in os.environ
if model == "fails":
    print("half of it is done")
    sys.exit("first\\n  no tensors \\n\\n")
if model == "silent":
    sys.exit(3)
if model != "writes nothing":
    open(options[1], "w").write(" ".join([model, options[0], *options[2:]]))
"""
QUANTIZE = """#!/bin/sh
case "$(cat "$1")" in
*broken*) echo "bad tensor"; exit 1 ;;
*lost*) exit 0 ;;
esac
echo "$(cat "$1") $3" > "$2"
"""


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_model_is_converted_and_the_last_line_of_a_failure_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "here")
    script = write_program(tmp_path / "convert_hf_to_gguf.py", SCRIPT)
    converter = Converter(script, write_program(tmp_path / "llama-quantize", QUANTIZE))
    file = tmp_path / "out" / "model.gguf"
    file.parent.mkdir()
    for bits, written in (
        (None, "mine --outfile --outtype auto"),
        (16, "mine --outfile --outtype f16"),
        (8, "mine --outfile --outtype q8_0"),
        (4, "mine --outfile --outtype f16 Q4_K_M\n"),
    ):
        converter.convert(Path("mine"), file, bits)
        assert file.read_text() == written
        assert [*file.parent.iterdir()] == [file]
        file.unlink()
    conversion = "conversion_failed(script=convert_hf_to_gguf.py, reason="
    quantization = "quantization_failed(quantizer=llama-quantize, reason="
    silent = "export_gguf.program_failed_silently(code={})"
    for model, bits, refusal in (
        ("fails", 8, f"{conversion}no tensors)"),
        ("silent", 8, f"{conversion}{silent.format(3)})"),
        ("writes nothing", 8, f"{conversion}{silent.format(0)})"),
        ("broken", 4, f"{quantization}bad tensor)"),
        ("lost", 4, f"{quantization}{silent.format(0)})"),
    ):
        with pytest.raises(ValueError, match=re.escape(refusal)):
            converter.convert(Path(model), file, bits)
        assert [*file.parent.iterdir()] == []


def test_the_converter_is_looked_for_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("LLAMA_CPP_DIR", "~/mine")
    folders = ["home/.unsloth/llama.cpp", "home/llama.cpp", "llama.cpp", "path", "home/mine"]
    for folder in folders:  # the last one first
        script = write_program(tmp_path / folder / "convert_hf_to_gguf.py", "#!/bin/sh")
        assert find_converter() == Converter(script, None)
    monkeypatch.delenv("LLAMA_CPP_DIR")
    assert find_converter().script.parent == tmp_path / "path"
    (tmp_path / "path/convert_hf_to_gguf.py").unlink()
    for folder in ("path", "llama.cpp/bin", "llama.cpp/build/bin", "llama.cpp"):
        quantizer = write_program(tmp_path / folder / "llama-quantize", "#!/bin/sh")
        assert find_converter().quantizer == quantizer
    for folder in folders[:3]:
        (tmp_path / folder / "convert_hf_to_gguf.py").unlink()
    listed = "llama.cpp, ~/llama.cpp, ~/.unsloth/llama.cpp, /opt/llama.cpp"
    with pytest.raises(ValueError, match=rf"converter_missing\(.*folders={listed}\)"):
        find_converter()
