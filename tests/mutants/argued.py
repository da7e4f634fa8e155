"""Drawn defects that no test can find, by their key, with the reason: nothing that counts changes.

One that a test could find has no place here, however hard that test would be to write.
"""

ARGUED: dict[str, str] = {
    "8c8f2494c48dba2e": "which one position is kept does not matter to whether one is",
    "3ca1f0bd5af29454": "a state of just this size is as well written now as in the background",
    "97a57841def74fdb": "packs of just this size are as well read by one thread as by two",
    "94c097dbda0817ce": "any large numbers show what a model does to its logits",
    "38b03aea328a70f3": "all entries are zero, and one more of them is never read",
    "91e12d147d044f8a": "a segment mask repeats one row of boundaries: the last is the first",
    "4747e09372cfd2a1": "the same bytes come in the same pieces, by one copy more of the last one",
    "ae48267124976022": "how much of a file is read at once does not change its hash",
    "0016027543a6c1c6": "an hour is meant, not an hour to the last fraction of a second",
    "f22f0fc227857fdf": "the same bytes go, by one copy more of the last one",
    "7616e7ed9b6a4b13": "the same bytes come, by one copy more",
    "19ac11b42d24250b": "counted at the place before it is read for the first time",
}
