"""convert.py ROOT: turn raises of sentences into codes, and write the catalogue."""
import ast, re, sys, json
from pathlib import Path
from collections import defaultdict
root = Path(sys.argv[1])
sys.path.insert(0, str(root))
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.schema import schema_of
from infrastructure.config.sources.flags import key_of_flag, all_flags
FIELDS = set(schema_of(DeploymentConfig).fields)
KEY = re.compile(r"(?<![\w.`/])((?:%s))(?![\w.]*\w)" % "|".join(sorted(map(re.escape, (k for k in FIELDS if "." in k or k in ("output_dir","run_name","price_per_hour","enable_monitoring","enable_backups","enable_testing","log_level"))), key=len, reverse=True)))
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*[a-z])")
PLAIN = {"--accept": "accept", "--max-tokens": "max_tokens", "--preset": "preset"}
STOP = set("a an the is are be was were of to in on and or it its this that no not has have had with for by as at than from which one what there here so only more can may must will would".split())
SKIP = {"AssertionError","StopIteration","SystemExit","NotImplementedError","KeyError","IndexError","AttributeError","TypeError","RuntimeError","OSError","FileNotFoundError","PermissionError","SkipTest","TimeIsUp","EOFError","InterruptedError","BrokenPipeError","FileExistsError","NotADirectoryError","TimeoutError","ImportError","UnknownNameError","ShapeError","FormatError","HistoryError","RunChangedError","BadLossError","CopyNotConfirmedError","StopSignal","ModuleNotFoundError","EnvironmentError"}
KNOWN = {"ValueError","ConfigurationError","TemperError","MissingPackageError","CheckpointError","DamagedFileError","DataError","TrainingDivergedError","NothingLearnedError","PreflightError","StorageError","NoAnswerError","DeviceFailedError","ProcessLostError","RunFailedError","SamplerError","MemoryLimitError","RestartNeededError","MissingSecretError","DoesNotFitError","NoSuchRunError","UnseenValueError","TokenFunctionError","PackingUnsupportedError","UnconfirmedDataError","PictureError","DamagedEntryError","InstallError","FencedError","NotOnHubError"}
catalogue = defaultdict(dict)
report = []
def topic_of(path):
    parts = path.relative_to(root/"infrastructure").parts
    if parts[0] == "training" and len(parts) > 2: t = parts[1]
    else: t = parts[0] if len(parts) > 1 else "training"
    return {"hf_bridge":"trainer","core":"training" if parts[0]=="training" else "system"}.get(t, t)
def ident(node):
    if isinstance(node, ast.Name): return node.id.strip("_").lower()
    if isinstance(node, ast.Attribute):
        a = node.attr.strip("_").lower()
        if a in ("name","path","value","key","text") and not isinstance(node.value, ast.Call):
            b = ident(node.value)
            return b if b and b not in ("self","cls") else a
        return a
    if isinstance(node, ast.Subscript): return ident(node.value)
    if isinstance(node, ast.Call):
        f = node.func
        if isinstance(f, ast.Name) and f.id == "len" and node.args: return "num_" + (ident(node.args[0]) or "items")
        if isinstance(f, ast.Attribute) and f.attr == "join" and node.args: return ident(node.args[0]) or "items"
        if node.args:
            i = ident(node.args[0])
            if i: return i
        if isinstance(f, ast.Attribute): return ident(f.value) if f.attr in ("strip","lower","upper","total_seconds","item","tolist","as_posix") else f.attr.strip("_")
        return f.id.strip("_") if isinstance(f, ast.Name) else None
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)): return ident(node.generators[0].iter)
    if isinstance(node, ast.Starred): return ident(node.value)
    if isinstance(node, ast.BinOp): return ident(node.left)
    if isinstance(node, ast.BoolOp): return ident(node.values[0])
    return None
class Bad(Exception): pass
def esc(s): return s.replace("{","{{").replace("}","}}")
def mark(s):
    """settings in constant text"""
    def flag(m):
        f = m[1]
        if f in PLAIN: return "{=%s}" % PLAIN[f]
        k = key_of_flag(f)
        return "{=%s}" % k if k in FIELDS else f
    out = KEY.sub(lambda m: "{=%s}" % m[1], s)
    out = FLAG.sub(flag, out)
    out = re.sub(r"\{=([\w.]+)\} ?= ?(\"[^\"{}]*\"|'[^'{}]*'|[\w.+/-]*\w)", lambda m: "{=%s:%s}" % (m[1], m[2].strip("\"'")), out)
    return out
def words(node):
    """template, {name: source}"""
    about = {}; consts=[]
    def put(v):
        name = ident(v.value) or "detail"
        name = re.sub(r"\W","_",name)
        if name in ("in","is","or","and","not","for","from","class","def","if","else","with","as","self","lambda","import"): name += "_"
        src = ast.unparse(v.value)
        # join → list
        n = name; i = 2
        while n in about and about[n] != src: n = f"{name}_{i}"; i += 1
        about[n] = src
        conv = {114:"!r",115:"!s",97:"!a",-1:""}[v.conversion]
        spec = ""
        if v.format_spec is not None:
            if not all(isinstance(x, ast.Constant) for x in v.format_spec.values): raise Bad("nested spec")
            spec = ":" + "".join(x.value for x in v.format_spec.values)
        return "{%s%s%s}" % (n, conv, spec)
    def walk(n):
        if isinstance(n, ast.Constant) and isinstance(n.value, str):
            consts.append(n.value); return mark(esc(n.value))
        if isinstance(n, ast.JoinedStr):
            return "".join(walk(x) if isinstance(x, ast.Constant) else put(x) for x in n.values)
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add): return walk(n.left)+walk(n.right)
        if isinstance(n,(ast.IfExp,ast.Call)):
            return put(ast.FormattedValue(value=n, conversion=-1, format_spec=None))
        raise Bad(type(n).__name__)
    t = walk(node)
    if not consts: raise Bad("no constant")
    # "--flag {value}" / key={value}
    t = re.sub(r"\{=([\w.]+)\} ?= ?\{(\w+)(![rs])?\}", r"{=\1:{\2}}", t)
    return t, about, consts
def slug(consts, topic):
    ws = re.findall(r"[A-Za-z][A-Za-z-]*", " ".join(consts))
    ws = [w.lower().replace("-","_").strip("_") for w in ws]
    ws = [w for w in ws if w not in STOP and len(w) > 1][:4]
    return "_".join(ws) or "message"
n = 0
for path in sorted((root/"infrastructure").rglob("*.py")):
    src = path.read_text(); tree = ast.parse(src)
    lines = src.encode().splitlines(keepends=True)
    offs=[0]
    for l in lines: offs.append(offs[-1]+len(l))
    pos = lambda ln,col: offs[ln-1]+col
    edits=[]; uses=set()
    t = topic_of(path)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)): continue
        call = node.exc; f = call.func
        name = f.id if isinstance(f, ast.Name) else None
        if name not in KNOWN: 
            if name not in SKIP: report.append((str(path.relative_to(root)), node.lineno, "class", ast.unparse(f)))
            continue
        if len(call.args) != 1 or call.keywords:
            report.append((str(path.relative_to(root)), node.lineno, "args", ast.unparse(call)[:100])); continue
        try: text, about, consts = words(call.args[0])
        except Bad as e:
            report.append((str(path.relative_to(root)), node.lineno, str(e), ast.unparse(call)[:100])); continue
        s = slug(consts, t); code = s; i=2
        while code in catalogue[t] and catalogue[t][code] != text: code=f"{s}_{i}"; i+=1
        catalogue[t][code] = text
        cls = "InputError" if name == "ValueError" else name
        uses.add(cls)
        args = ", ".join([f'"{t}.{code}"'] + [f"{k}={v}" for k,v in about.items()])
        edits.append((pos(call.lineno,call.col_offset), pos(call.end_lineno,call.end_col_offset), f"{cls}({args})"))
        n+=1
    if not edits: continue
    b = src.encode()
    for a,z,new in sorted(edits, reverse=True): b = b[:a]+new.encode()+b[z:]
    out = b.decode()
    if "InputError" in uses and not re.search(r"import .*\bInputError\b", out):
        m = re.search(r"^from infrastructure\.core\.errors import ", out, re.M)
        imp = "from infrastructure.core.errors import InputError\n"
        # after the module docstring and __future__
        tr = ast.parse(out); first = next((x for x in tr.body if isinstance(x,(ast.Import,ast.ImportFrom)) and not (isinstance(x,ast.ImportFrom) and x.module=="__future__")), None)
        L = out.splitlines(keepends=True)
        if first is not None: at = first.lineno-1
        else: at = (tr.body[0].end_lineno if isinstance(tr.body[0],ast.Expr) else 0)
        L.insert(at, imp); out = "".join(L)
    path.write_text(out)
def toml_str(s): return json.dumps(s, ensure_ascii=False)
cat = root/"infrastructure/core/catalogue"; cat.mkdir(exist_ok=True)
for t, entries in catalogue.items():
    with (cat/f"{t}.toml").open("w") as f:
        for code, text in entries.items():
            f.write(f"[{code}]\ntext = {toml_str(text)}\n\n")
print("converted", n, "topics", {t: len(e) for t,e in catalogue.items()})
with open("/tmp/o/left.txt","w") as f:
    for r in report: f.write(" | ".join(map(str,r))+"\n")
print("left", len(report))
