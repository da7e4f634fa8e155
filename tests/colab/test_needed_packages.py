"""What is lacking, what stays, and where that is written down."""

from pathlib import Path

import pytest

from colab import needed_packages
from colab.needed_packages import Needed, needed, needed_by_unsloth, requirement_lines
from infrastructure.deployment.installers import InstallError
from infrastructure.testing.doctor import Installation
from tests.testing.fake_packages import install_temper

REQUIREMENTS = {
    "": ["numpy>=2", "leaf>=1.2", "torch>=2.11,<2.14", "other"],
    "tested": [
        *("numpy==2.4.6", "leaf==1.5", "torch==2.13.0", "torchao==0.18.0", "trl==1.14.2"),
        "setuptools==84.2.1",
    ],
    "colab": ["torchao==0.18.0", "trl==0.29.1", "numpy==2.1.3", "ipywidgets==7.7.1"],
    "unsloth": ["unsloth==2026.10.9", "einops==0.8.2"],
}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The packages of this environment, by name, to be filled by the test."""
    packages: dict[str, str] = {}
    monkeypatch.setattr(needed_packages, "requirement_lines", lambda: REQUIREMENTS)
    monkeypatch.setattr(needed_packages, "installed_version", packages.get)
    return packages


def test_what_is_missing_comes_in_the_tested_version(here: dict[str, str]) -> None:
    assert needed("tested", with_unsloth=False) == Needed(
        (
            *("numpy==2.4.6", "leaf==1.5", "torch==2.13.0", "other", "torchao==0.18.0"),
            *("trl==1.14.2", "setuptools==84.2.1"),
        ),
        (),
    )


def test_what_a_new_torch_needs_newer_is_not_held(here: dict[str, str]) -> None:
    """A bare environment of Python 3.11 has a setuptools that PyTorch 2.13 refuses."""
    here |= {"setuptools": "65.5.0", "leaf": "1.5"}
    assert needed("tested", with_unsloth=False).held == ("leaf==1.5",)
    here["torch"] = "2.13.0"
    assert "setuptools==65.5.0" in needed("tested", with_unsloth=False).held


def test_what_is_there_and_works_stays_whatever_was_tested(here: dict[str, str]) -> None:
    here |= {"numpy": "2.1.3", "leaf": "1.9", "torch": "2.11.0+cu128", "other": "3"}
    here |= {"torchao": "0.20", "trl": "0.5", "ipywidgets": "7.7.1", "setuptools": "75"}
    found = needed("tested", with_unsloth=False)
    assert found.lines == ()
    assert "torch==2.11.0+cu128" in found.held
    assert {"numpy==2.1.3", "leaf==1.9", "trl==0.5", "ipywidgets==7.7.1"} <= {*found.held}


def test_on_colab_only_what_peft_refuses_is_replaced(here: dict[str, str]) -> None:
    here |= {"numpy": "2.0.2", "leaf": "1.2", "torch": "2.11.0+cu128", "other": "3"}
    here |= {"torchao": "0.10.0", "ipywidgets": "7.7.2"}
    found = needed("colab", with_unsloth=False)
    assert found.lines == ("torchao==0.18.0", "trl==0.29.1")
    assert "ipywidgets==7.7.2" in found.held
    assert not any(line.startswith("torchao") for line in found.held)


def test_what_is_too_old_is_replaced(here: dict[str, str]) -> None:
    here |= {"numpy": "2.1.3", "leaf": "1.1", "torch": "2.13.0", "other": "3"}
    assert needed("colab", with_unsloth=False).lines[0] == "leaf>=1.2"
    assert needed("tested", with_unsloth=False).lines[0] == "leaf==1.5"


@pytest.mark.parametrize(("name", "version"), [("numpy", "1.26"), ("torch", "2.14.0")])
def test_what_a_kernel_has_loaded_is_never_replaced(
    here: dict[str, str], name: str, version: str
) -> None:
    here[name] = version
    with pytest.raises(
        InstallError, match=rf"too_old\(name={name}, version={version}, needed={name}>="
    ):
        needed("colab", with_unsloth=False)


def test_unsloth_is_exact_and_what_it_imports_is_left_alone(here: dict[str, str]) -> None:
    assert needed("tested", with_unsloth=True).alone == ("unsloth==2026.10.9", "einops==0.8.2")
    here |= {"unsloth": "2026.9.1", "einops": "0.7"}
    assert needed("tested", with_unsloth=True).alone == ("unsloth==2026.10.9",)
    here["unsloth"] = "2026.10.9"
    assert needed("tested", with_unsloth=True).alone == ()


@pytest.mark.parametrize(
    ("datasets", "expected"), [("4.0.0", ("datasets==3.6.0",)), ("3.6.0", ()), ("4.8.5", ())]
)
def test_datasets_that_unsloth_excludes_is_replaced(
    here: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    datasets: str,
    expected: tuple[str, ...],
) -> None:
    here["datasets"] = datasets
    requirements = ["datasets!=4.0.*,<5.0.0,>=3.4.1", "torch>=2.4", 'datasets>=9; extra == "x"']
    monkeypatch.setattr(needed_packages.importlib.metadata, "requires", lambda name: requirements)
    assert needed_by_unsloth() == expected


def test_a_checkout_s_files_and_an_installation_s_metadata_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_checkout = requirement_lines()
    assert {"", "tested", "colab", "unsloth"} <= {*of_checkout}
    extras = {name: tuple(lines) for name, lines in of_checkout.items() if name}
    install_temper(tmp_path, tuple(of_checkout[""]), **extras)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert requirement_lines(root=tmp_path) == of_checkout


def test_the_doctor_reads_the_same_metadata(tmp_path: Path) -> None:
    install_temper(tmp_path, ("leaf>=1",), tested=("leaf==1.5",))
    (tested,) = Installation([str(tmp_path)]).requirements("temper-train", extra="tested")
    assert (tested.name, str(tested.specifier)) == ("leaf", "==1.5")


def test_without_either_the_error_names_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise needed_packages.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(needed_packages.importlib.metadata, "requires", missing)
    with pytest.raises(InstallError, match=r"notebook\.temper_not_installed\("):
        requirement_lines(root=tmp_path)
