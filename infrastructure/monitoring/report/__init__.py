"""`report.html`, one self-contained page about a run. The other files here contain its sections."""
