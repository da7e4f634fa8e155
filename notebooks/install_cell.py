# @title Install { display-mode: "form" }
import importlib.metadata, os, pathlib, subprocess, sys

VERSION, ADDRESS = "{version}", "{repository}"
here = pathlib.Path.cwd()
clone = next((str(f) for f in (here, *here.parents) if (f / "colab/bootstrap.py").is_file()), None)
there = importlib.metadata.distributions(name="temper-train")
if clone:  # this notebook lies in it, and means it
    sys.path.insert(0, clone)
elif not any(one.read_text("RECORD") for one in there):  # none, or broken off half-way
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed"]
    sources = f"temper-train=={VERSION}", f"git+{ADDRESS}@v{VERSION}"
    silent = {"capture_output": True, "stdin": subprocess.DEVNULL}
    os.environ["GIT_TERMINAL_PROMPT"] = "0"  # an address that is not there is no question
    if all(subprocess.run([*pip, source], **silent).returncode for source in sources):
        shown = {"_render_traceback_": lambda error: [str(error)]}
        raise type("NotInstalled", (Exception,), shown)(
            f"Temper {VERSION} could not be installed, neither from the package index nor from"
            f" {ADDRESS}: see that this machine reaches them and that this is Python 3.11 or newer"
            f" (it is {sys.version.split()[0]}), or open this notebook inside a clone of Temper"
        )

import colab

colab.install()
