"""llama.cpp's converter to GGUF: how Temper finds, checks and runs it.

The converter is a script in llama.cpp's sources and not a package. Temper looks for it in the
folder of LLAMA_CPP_DIR, on PATH, and in the usual folders of llama.cpp and Unsloth. Nothing is
downloaded. 4-bit weights are made by llama.cpp's llama-quantize.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase

SCRIPT = "convert_hf_to_gguf.py"
QUANTIZER = "llama-quantize"
FOLDER_VARIABLE = "LLAMA_CPP_DIR"
USUAL_FOLDERS = ("llama.cpp", "~/llama.cpp", "~/.unsloth/llama.cpp", "/opt/llama.cpp")
BUILD_FOLDERS = (".", "build/bin", "bin")
OUT_TYPES = {None: "auto", 16: "f16", 8: "q8_0", 4: "f16"}
FOUR_BITS = "Q4_K_M"


@dataclass(frozen=True)
class Converter:
    """llama.cpp's converter, and its program for 4-bit quantization if that is installed."""

    script: Path
    quantizer: Path | None

    def check(self, architecture: str, bits: int | None) -> None:
        """Check that the converter runs on this machine and supports this model architecture.

        Raises:
            ValueError: if the check fails; the message says why, and what to do.
        """
        if bits == 4 and self.quantizer is None:
            raise InputError(
                "export_gguf.quantizer_missing", quantizer=QUANTIZER, script=self.script
            )
        known = self._run("--print-supported-models")
        if known.returncode != 0:
            raise InputError(
                "export_gguf.converter_does_not_run", script=self.script, reason=last_line(known)
            )
        listed = {line.strip(" -\t") for line in (known.stdout + known.stderr).splitlines()}
        if architecture and not any(architecture in line.split() for line in listed):
            raise InputError(
                "export_gguf.converter_lacks_architecture",
                script=self.script,
                architecture=architecture,
            )

    def convert(self, model: Path, file: Path, bits: int | None) -> None:
        """Convert the model in the Hugging Face folder `model`, and write it to `file`.

        Raises:
            ValueError: if the converter fails; the error quotes its message.
        """
        plain = file.with_suffix(".plain.gguf") if bits == 4 else file
        done = self._run(str(model), "--outfile", str(plain), "--outtype", OUT_TYPES[bits])
        if done.returncode != 0 or not plain.is_file():
            raise InputError(
                "export_gguf.conversion_failed",
                script=self.script.name,
                reason=last_line(done),
            )
        if bits == 4:
            assert self.quantizer is not None
            made = _execute([str(self.quantizer), str(plain), str(file), FOUR_BITS])
            plain.unlink()
            if made.returncode != 0 or not file.is_file():
                raise InputError(
                    "export_gguf.quantization_failed",
                    quantizer=QUANTIZER,
                    reason=last_line(made),
                )

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return _execute([sys.executable, str(self.script), *arguments])


def find_converter() -> Converter:
    """Find the converter on this machine.

    Raises:
        ValueError: if the converter was not found; the message says where Temper looked, and how to
            install the converter.
    """
    for script in _usual_scripts():
        if script.is_file():
            return Converter(script.resolve(), _quantizer(script))
    raise InputError(
        "export_gguf.converter_missing",
        script=SCRIPT,
        folder_variable=FOLDER_VARIABLE,
        folders=", ".join(USUAL_FOLDERS),
    )


def _usual_scripts() -> Iterator[Path]:
    if folder := os.environ.get(FOLDER_VARIABLE):
        yield Path(folder).expanduser() / SCRIPT
    if on_path := shutil.which(SCRIPT):
        yield Path(on_path)
    for folder in USUAL_FOLDERS:
        yield Path(folder).expanduser() / SCRIPT


def _quantizer(script: Path) -> Path | None:
    for folder in BUILD_FOLDERS:
        if (path := script.resolve().parent / folder / QUANTIZER).is_file():
            return path
    on_path = shutil.which(QUANTIZER)
    return Path(on_path) if on_path else None


def _execute(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a program printed, or its exit code if it printed nothing."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return (
        lines[-1] if lines else phrase("export_gguf.program_failed_silently", code=done.returncode)
    )
