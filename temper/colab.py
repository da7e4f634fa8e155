"""`import temper.colab`: what notebooks call; the same module that `import colab` gives."""

import sys

import colab

sys.modules[__name__] = colab
