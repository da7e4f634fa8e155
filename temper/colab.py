"""`import temper.colab`: the functions that notebooks call; `import colab` is the same."""

import sys

import colab

sys.modules[__name__] = colab
