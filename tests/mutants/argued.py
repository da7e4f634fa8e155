"""Drawn defects that no test can find, by their key, with the reason: nothing that counts changes.

One that a test could find has no place here, however hard that test would be to write.
"""

ARGUED: dict[str, str] = {
    "8c8f2494c48dba2e": "which one position is kept does not matter to whether one is",
}
