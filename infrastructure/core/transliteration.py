"""Conversion of names to ASCII, for use in file names: `Prüfung` becomes `Prufung`."""

import re
import unicodedata

_ACCENTS = re.compile(r"[\u0300-\u036f]")
# Letters that Unicode does not decompose into an ASCII letter and an accent.
_LATIN = "ß=ss ẞ=SS æ=ae œ=oe ø=o ł=l đ=d ð=d þ=th ħ=h ŋ=ng ı=i"
_GREEK = (
    "α=a β=b γ=g δ=d ε=e ζ=z η=i θ=th ι=i κ=k λ=l μ=m"
    " ν=n ξ=x ο=o π=p ρ=r σ=s ς=s τ=t υ=u φ=f χ=ch ψ=ps ω=o"
)
_CYRILLIC = (
    "а=a б=b в=v г=g д=d е=e ж=zh з=z и=i к=k л=l м=m н=n о=o п=p р=r с=s т=t у=u ф=f"
    " х=kh ц=ts ч=ch ш=sh щ=shch ъ= ы=y ь= э=e ю=iu я=ia"
    " є=ie і=i ґ=g ђ=dj ј=j љ=lj њ=nj ћ=c џ=dz"
)
_LETTERS = dict(pair.split("=") for pair in f"{_LATIN} {_GREEK} {_CYRILLIC}".split())
_LETTERS |= {
    letter.upper(): ascii_letters.capitalize()
    for letter, ascii_letters in _LETTERS.items()
    if len(letter.upper()) == 1 and letter.upper() not in _LETTERS and not letter.upper().isascii()
}
_TABLE = str.maketrans(_LETTERS)


def in_ascii(text: str) -> str:
    """Return `text` with Latin, Greek and Cyrillic letters in ASCII. The rest is unchanged."""
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text)).translate(_TABLE)
