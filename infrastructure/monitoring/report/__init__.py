"""`report.html`: one self-contained page of a run; its sections are in the other files here."""
