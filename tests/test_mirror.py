"""`infrastructure/a/b.py` is tested in `tests/a/test_b.py`, or is in `mirror_exceptions.txt`."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
LISTED = (TESTS / "mirror_exceptions.txt").read_text().splitlines()


def modules_without_a_test_of_their_own() -> list[str]:
    product = TESTS.parent / "infrastructure"
    return [
        path.relative_to(product).as_posix()
        for path in sorted(product.rglob("*.py"))
        if not path.name.startswith("__")
        and not (TESTS / path.relative_to(product).with_name(f"test_{path.name}")).exists()
    ]


def test_a_new_module_has_a_test_of_its_own() -> None:
    """Or a line in the list: it is tested through the module that uses it."""
    assert sorted(set(modules_without_a_test_of_their_own()) - set(LISTED)) == []


def test_the_list_has_no_other_module() -> None:
    """It shrinks with each test that is written."""
    assert sorted(set(LISTED)) == LISTED
    assert sorted(set(LISTED) - set(modules_without_a_test_of_their_own())) == []
