"""The words that `sample_tasks` builds the sample tasks from."""


def words(text: str) -> tuple[str, ...]:
    """Split a text at white space into words."""
    return tuple(text.split())


NAMES = words(
    "Anna Ben Carla David Elena Felix Grace Hassan Irene Jonas "
    "Karim Laura Marco Nadia Oscar Paula Rosa Samuel Tara Yusuf"
)

CITIES = words(
    "Athens Berlin Cairo Dublin Florence Geneva Hanoi Istanbul Jakarta Kyoto "
    "Lisbon Madrid Nairobi Oslo Paris Rome Seoul Tokyo Vienna Warsaw"
)

KINDS = {
    "animal": words("dog cat horse cow sheep rabbit tiger fox"),
    "fruit": words("apple pear plum cherry banana grape lemon melon"),
    "tool": words("hammer saw drill shovel rake axe ladder brush"),
    "colour": words("red blue green yellow black white brown pink"),
    "vehicle": words("car bus train plane boat truck bicycle tram"),
}

ITEMS = tuple(word for kind in KINDS.values() for word in kind)

MONTHS = words(
    "January February March April May June July August September October November December"
)

JOBS = words("baker teacher nurse pilot farmer lawyer painter driver singer tailor")

DRINKS = words("tea coffee milk juice water lemonade cocoa cider beer wine")
