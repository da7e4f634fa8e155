"""torchvision, as far as processors need it: its transforms, which are PyTorch's own arithmetic.

Its operators for boxes are built for one build of torch. Beside another one, such as torch's for
CPUs alone, its import stops, because it describes operators that are not there; here they are
declared first, without a computation behind them.
"""

import importlib
import sys
from functools import cache
from importlib.util import find_spec

import torch

OPERATORS = ("nms", "qnms", "roi_align", "qroi_align", "ps_roi_align", "roi_pool", "ps_roi_pool")
BACKWARD = ("roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d")
_declared: list[torch.library.Library] = []


@cache
def has_torchvision() -> bool:
    """Whether processors can use it, here and now; declares its operators where that is needed."""
    if find_spec("torchvision") is None:
        return False
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in (*OPERATORS, "deform_conv2d", *(f"_{name}_backward" for name in BACKWARD)):
            library.define(f"{name}(Tensor x) -> Tensor")
        _declared.append(library)  # what it declares is gone with it
        importlib.import_module("torchvision")
    return True
