"""Latin, Greek and Cyrillic letters in ASCII."""

import pytest

from infrastructure.core.transliteration import in_ascii


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("Prüfung für Zoë", "Prufung fur Zoe"),
        ("große Straße, GROẞE", "grosse Strasse, GROSSE"),
        ("Ærø smørrebrød, Łódź, Þór", "Aero smorrebrod, Lodz, Thor"),
        ("İstanbul ırmak", "Istanbul irmak"),
        ("Ещё модель №2, Щука", "Eshche model No2, Shchuka"),
        ("Ψυχή", "Psuchi"),
        ("日本 a-b_c", "日本 a-b_c"),
    ],
)
def test_letters_are_spelt_in_ascii_and_all_else_stays(text: str, spelt: str) -> None:
    assert in_ascii(text) == spelt
