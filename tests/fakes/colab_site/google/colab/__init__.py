"""A stand-in for Colab's own package: its signatures, what it raises, and what it leaves behind.

Read from googlecolab/colabtools 3c07d776. It is used where the folder above `google` is on the path
and the variable FAKE_COLAB names a folder: `behaviour.json` there says how it behaves, what was
called is added to `calls.jsonl`, and `cloud/` is the Drive.
"""

from google.colab import drive, files, output, runtime

__all__ = ["drive", "files", "output", "runtime"]
