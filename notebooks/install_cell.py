# @title Install { display-mode: "form" }
import importlib.metadata, os, pathlib, subprocess, sys

VERSION, ADDRESS = "{version}", "{repository}"
here = pathlib.Path.cwd()
clone = next((str(f) for f in (here, *here.parents) if (f / "colab/bootstrap.py").is_file()), None)
there = importlib.metadata.distributions(name="temper-train")
if clone:  # this notebook is inside a clone: use that
    sys.path.insert(0, clone)
elif not any(one.read_text("RECORD") for one in there):  # not installed, or only in part
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed"]
    sources = f"temper-train=={VERSION}", f"git+{ADDRESS}@v{VERSION}"
    silent = {"capture_output": True, "stdin": subprocess.DEVNULL}
    os.environ["GIT_TERMINAL_PROMPT"] = "0"  # fail, do not ask for a login
    if all(subprocess.run([*pip, source], **silent).returncode for source in sources):
        shown = {"_render_traceback_": lambda error: [str(error)]}
        raise type("NotInstalled", (Exception,), shown)(
            f"Temper {VERSION} could not be installed, neither from the package index nor from"
            f" {ADDRESS}. Check that this machine can reach them and that its Python is 3.11"
            f" or newer (it is {sys.version.split()[0]}),"
            " or open this notebook inside a clone of Temper"
        )

import colab

colab.install()
