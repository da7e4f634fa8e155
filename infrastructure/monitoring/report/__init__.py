"""`report.html`: one self-contained page of a run, the sections in files beside it."""
