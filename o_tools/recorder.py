"""pytest plugin: which code each pytest.raises(match=…) caught."""
import json, os, sys
import pytest
OUT = os.environ["RAISES_OUT"]
orig = pytest.raises
def note(loc, exc):
    code = getattr(exc, "code", None)
    about = {}
    if isinstance(code, str) and hasattr(exc, "message"):
        for k, v in exc.message.about.items():
            try: about[k] = [type(v).__name__, str(v)[:200]]
            except Exception: pass
    else: code = None
    with open(OUT, "a") as f:
        f.write(json.dumps({"file": loc[0], "line": loc[1], "class": type(exc).__name__, "code": code, "about": about, "text": str(exc)[:300], "test": os.environ.get("PYTEST_CURRENT_TEST","")}) + "\n")
class Wrap:
    def __init__(self, cm, loc): self.cm, self.loc = cm, loc
    def __enter__(self): return self.cm.__enter__()
    def __exit__(self, t, v, tb):
        if v is not None: note(self.loc, v)
        return self.cm.__exit__(t, v, tb)
    def __getattr__(self, n): return getattr(self.cm, n)
def raises(expected, *args, **kw):
    f = sys._getframe(1)
    if args: return orig(expected, *args, **kw)
    return Wrap(orig(expected, **kw), (f.f_code.co_filename, f.f_lineno))
raises.Exception = getattr(orig, "Exception", None)
pytest.raises = raises
