"""`import temper.colab`: what notebooks call; the very module that `import colab` gives."""

import sys

import colab

sys.modules[__name__] = colab
