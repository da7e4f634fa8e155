"""What a notebook shows of an error: Temper's own as a text, any other with its traceback."""

from pathlib import Path

from tests.colab.kernels import ROOT, start_kernel

# These are caught, and become the error of a row or of a file.
INSIDE = ("infrastructure/core/json_text.py", "infrastructure/data/encoding/python_repr.py")

MISTAKES = {
    "a misspelt setting": "colab.configure(lerning_rate=1)",
    "a wrong value": 'colab.configure(learning_rate="fast")',
    "a missing file": 'colab.show_data(colab.configure(model="embedded", data_path="no.jsonl"))',
    "a missing model": 'colab.ask("./no/model", ["Hello"])',
    "a wrong word": 'colab.export("run", file_format="ggf")',
}


def test_a_cell_shows_the_text_of_a_mistake_and_its_traceback_on_request(tmp_path: Path) -> None:
    with start_kernel(tmp_path) as kernel:
        kernel.run("import colab")
        for mistake, code in MISTAKES.items():
            done = kernel.run(code)
            assert done.traceback == done.error.splitlines(), mistake
        shown = "\n".join(kernel.run("%tb").traceback)
        assert "Traceback (most recent call last)" in shown
        assert "Traceback" in "\n".join(kernel.run("1 / 0").traceback)


def test_what_a_user_has_to_mend_is_raised_as_an_error_of_temper() -> None:
    """A ValueError would fill the cell with its traceback."""
    plain = [
        str(path.relative_to(ROOT))
        for path in [*ROOT.glob("infrastructure/**/*.py"), *ROOT.glob("colab/*.py")]
        if "raise ValueError(" in path.read_text(encoding="utf-8")
    ]
    others = ("infrastructure/commands/", *INSIDE)
    assert [path for path in plain if not path.startswith(others)] == []
