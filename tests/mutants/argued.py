"""Drawn defects that no test can find, by their key, with the reason: nothing that counts changes.

One that a test could find has no place here, however hard that test would be to write.
"""

ARGUED: dict[str, str] = {
    "8c8f2494c48dba2e": "which one position is kept does not matter to whether one is",
    "3ca1f0bd5af29454": "a state of just this size is as well written now as in the background",
    "94c097dbda0817ce": "any large numbers show what a model does to its logits",
    "91e12d147d044f8a": "a segment mask repeats one row of boundaries: the last is the first",
    "ae48267124976022": "how much of a file is read at once does not change its hash",
    "0f71f655efc00a2c": "an hour is meant, not an hour to the last second",
    "f98fd3cb9d861c0f": "about half a gigabyte is meant, as much as any machine has to spare",
    "7616e7ed9b6a4b13": "the same bytes come, by one copy more",
    "19ac11b42d24250b": "counted at the place before it is read for the first time",
    "061f263da62caf02": "a mark of two characters stands for a text as one of one does",
    "89e78e993182c040": "the turns that are equal are taken, from one list or from the other",
    "bda44b3a51072ae6": "one level more is found when the text has been read",
    "2d523a09d2ca3a7f": "the place of a row is written over",
    "043467433f21ba39": "the place of a row is written over",
    "b2f6cfc4db5eda7e": "texts that hold their prompt have one message",
    "3c111a11f564e811": "no columns, one way or the other",
    "b0b599a5a3f415c8": "about half a minute is meant",
    "9ebd29a043d269bd": "about five minutes are meant",
    "3b3062bd3b1c5df8": "how often a waiting thread looks up does not change what it gives",
    "d99e3323dcb42200": "torch's default dtype is this one unless it is changed",
    "6a3c2f4f1622d043": "two sums of floats that differ by exactly the least gain",
    "2f036ca1566d8662": "the size of a piece does not change the file",
    "97728d86da27db63": "a rise of exactly the least gain changes a mean by nothing that counts",
    "ca7e35c3f91c8ed9": "about two hundred are meant",
    "dd0987a8afe2fbdb": "any of these shifts mixes the bits of a number",
    "d27cd699e73d5e3a": "in how many pieces a copy is announced does not change it",
    "0cd6b940ae1b3612": "a reason of about this length is meant",
    "ccf2491fc21808db": "one byte, and only of a model without parameters outside its blocks",
    "1b847d01bc9c664f": "an example that has nothing in common is as good as none",
}
