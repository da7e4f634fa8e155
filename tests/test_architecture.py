"""The architecture as a test: layers, cycles, hidden imports, side effects.

Python does not forbid import cycles, so this test does. It needs nothing but the standard library.
"""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "infrastructure"
NOTEBOOK_SIDE = "colab"  # above all layers but the `notebook` modules of features
FACADE = "temper"  # the same: names for people

# Low to high. A module imports from lines above its own and from its own folder.
# Folders on one line are siblings: they never import each other.
LAYERS: list[set[str]] = [
    {"core"},
    {"config"},
    {"monitoring", "optimization", "backup"},
    {"run", "data", "models"},
    {"training"},
    {"evaluation", "testing"},
    {"deployment"},
    {"commands"},
    {"__main__", "features"},
]

# The same rule one level down. What stands alone at the root of a folder is a door of it.
TRAINING_LAYERS: list[set[str]] = [
    {"core", "metrics"},
    {"model_adapters", "strategies", "extensions", "checkpoints"},
    {"forward"},
    {"distributed"},
    {"recovery"},
    {"loop", "observers"},
    {"resume"},
    {"hf_bridge", "methods", "sizing"},
    {"run_facts"},
    {"placement"},
    {"enhanced_trainer"},
    {"setup"},
    {"unsloth_trainer", "unified_trainer"},
    {"trainer_factory"},
    {"rank_process"},
]
DATA_LAYERS: list[set[str]] = [
    {"samples", "store"},
    {"defaults", "readers"},
    {"encoding"},
    {"preparation", "serving"},
    {"data_pipeline"},
]
BACKUP_LAYERS: list[set[str]] = [
    {"format"},
    {"backends", "state", "writer"},
    {"free_space", "inventory", "replication"},
    {"repair"},
    {"run_backup"},
    {"backup_system", "finished_run"},
]
CONFIG_LAYERS: list[set[str]] = [
    {"aliases", "measures", "registries", "types"},
    {"methods"},
    {"elsewhere", "field_help"},
    {"base"},
    {"schema", "sections", "serialize"},
    {"auto"},
    {"merging"},
    {"deployment_config"},
    {"describe", "fingerprint", "process_wide", "sources"},
]
MONITORING_LAYERS: list[set[str]] = [
    {"drawing", "watching"},
    {"logging_config", "training_monitor"},
    {"records"},
    {"report", "watch"},
]

# Heavy packages are imported inside the functions that need them: `temper --help` answers in
# under a second, and unsloth must be imported before transformers.
LAZY_PACKAGES = {"transformers", "trl", "peft", "unsloth", "bitsandbytes", "datasets"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path
    for package in (PACKAGE, NOTEBOOK_SIDE, FACADE)
    for path in sorted((ROOT / package).rglob("*.py"))
}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each module; parsed by the one worker that runs the tests of them."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The project modules that one import statement reaches."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        assert node.level == 0, f"relative import on line {node.lineno}: imports are absolute here"
        joined = [f"{node.module}.{alias.name}" for alias in node.names]
        names = [name if name in MODULES else str(node.module) for name in joined]
    return [name for name in names if name in MODULES]


@functools.cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a module. Many tests look at them, and a walk through all takes seconds."""
    return tuple(ast.walk(tree))


@functools.cache
def imports(name: str) -> set[str]:
    nodes = (n for n in nodes_of(trees()[name]) if isinstance(n, ast.Import | ast.ImportFrom))
    return {target for node in nodes for target in targets(node)} - {name}


def rank(module: str, layers: list[set[str]], depth: int) -> tuple[int, str] | None:
    parts = module.split(".")
    folder = parts[depth] if len(parts) > depth else None
    for level, folders in enumerate(layers):
        if folder in folders:
            return level, str(folder)
    return None


def broken(layers: list[set[str]], depth: int, inside: str) -> Iterator[str]:
    for name in MODULES:
        here = rank(name, layers, depth) if name.startswith(inside) else None
        for target in sorted(imports(name)) if here else []:
            there = rank(target, layers, depth) if target.startswith(inside) else None
            if here and there and there[1] != here[1] and there[0] >= here[0]:
                yield f"{name} (layer {here[0]}) imports {target} (layer {there[0]})"


LEVELS = [
    (1, LAYERS, PACKAGE),
    (2, TRAINING_LAYERS, f"{PACKAGE}.training"),
    (2, DATA_LAYERS, f"{PACKAGE}.data"),
    (2, BACKUP_LAYERS, f"{PACKAGE}.backup"),
    (2, CONFIG_LAYERS, f"{PACKAGE}.config"),
    (2, MONITORING_LAYERS, f"{PACKAGE}.monitoring"),
]


@pytest.mark.parametrize(("depth", "layers", "inside"), LEVELS)
def test_every_folder_has_a_layer(depth: int, layers: list[set[str]], inside: str) -> None:
    named = set().union(*layers)
    found = {
        m.split(".")[depth] for m in MODULES if m.startswith(inside + ".") and m.count(".") >= depth
    }
    assert found <= named, f"give these a layer: {sorted(found - named)}"


def test_the_map_has_the_same_layers() -> None:
    """The table of layers, and the list of those inside training/, in infrastructure/README.md."""
    page = (ROOT / PACKAGE / "README.md").read_text()
    rows = re.findall(r"^\| (\d) \| `(\w+)/` \|", page, re.M)
    in_table = {(int(number), folder) for number, folder in rows}
    known = {(number, folder) for number, folders in enumerate(LAYERS) for folder in folders}
    assert in_table == known - {(len(LAYERS) - 1, "__main__")}

    inside = page.split("### Inside training")[1].split("```")[1]
    lines = re.findall(r"^  (\S.*?)(?:  .*)?$", inside, re.M)
    assert [set(line.replace("/", "").split(" · ")) for line in lines] == TRAINING_LAYERS


def test_a_folder_names_its_own_layer() -> None:
    folders = set().union(*LAYERS) - {"__main__"}
    docstrings = {f: ast.get_docstring(trees()[f"{PACKAGE}.{f}"]) or "" for f in folders}
    numbers = {f: re.match(r"Layer (\d)", text) for f, text in docstrings.items()}
    named = {folder: int(found[1]) for folder, found in numbers.items() if found}
    assert len(named) > 5
    assert named == {f: n for n, folders in enumerate(LAYERS) for f in folders if f in named}


@pytest.mark.parametrize(("depth", "layers", "inside"), LEVELS)
def test_imports_point_downwards(depth: int, layers: list[set[str]], inside: str) -> None:
    assert list(broken(layers, depth, inside)) == []


def test_only_the_notebook_side_knows_of_notebooks() -> None:
    knowing = [
        name
        for name in MODULES
        if name.startswith(PACKAGE)
        and not re.fullmatch(rf"{PACKAGE}\.features\.\w+\.notebook", name)
        and any(t.startswith((NOTEBOOK_SIDE, FACADE)) for t in imports(name))
    ]
    assert knowing == []


def test_no_import_cycles() -> None:
    graph = {name: imports(name) for name in MODULES}
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        assert name not in path, "import cycle: " + " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for target in sorted(graph[name]):
            visit(target)
        path.pop()
        done.add(name)

    for name in graph:
        visit(name)


def nodes_inside_functions() -> Iterator[tuple[str, ast.Import | ast.ImportFrom]]:
    for name, tree in trees().items():
        for scope in nodes_of(tree):
            if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(scope):
                    if isinstance(node, ast.Import | ast.ImportFrom):
                        yield name, node


# A command and a cell of a notebook import what needs torch when their input is known to be right.
# No circle can hide there: nothing stands above them, and the tests of layers and circles see these
# imports too.
IMPORTS_WHERE_NEEDED = f"{PACKAGE}.commands.", f"{NOTEBOOK_SIDE}."


def test_no_project_import_hidden_in_a_function() -> None:
    hidden = [
        f"{name}:{node.lineno}"
        for name, node in nodes_inside_functions()
        if targets(node)
        and not name.startswith(IMPORTS_WHERE_NEEDED)
        and not re.fullmatch(rf"{PACKAGE}\.features\.\w+\.command", name)
    ]
    assert hidden == []


def test_heavy_packages_are_imported_inside_functions() -> None:
    eager = []
    for name, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots = {str(node.module).split(".")[0]}
            else:
                continue
            if roots & LAZY_PACKAGES:
                eager.append(f"{name}:{node.lineno}")
    assert eager == []


DISTRIBUTED = f"{PACKAGE}.training.distributed"


def imports_of_distributed(tree: ast.Module) -> list[int]:
    """Lines that import `torch.distributed`, or a part of it."""
    found = []
    for node in nodes_of(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        begin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        names = [f"{begin}{alias.name}." for alias in node.names]
        if any(name.startswith("torch.distributed.") for name in names):
            found.append(node.lineno)
    return found


def test_one_folder_knows_the_engine_of_several_processes() -> None:
    importing = {
        name
        for name, tree in trees().items()
        if imports_of_distributed(tree) and not name.startswith(f"{DISTRIBUTED}.")
    }
    assert importing == set()


@pytest.mark.parametrize(
    "line",
    [
        "import torch.distributed as dist",
        "from torch import distributed",
        "from torch.distributed.fsdp import fully_shard",
    ],
)
def test_another_import_of_that_engine_is_seen(line: str) -> None:
    assert imports_of_distributed(ast.parse(f"def f():\n    {line}")) == [2]
    assert imports_of_distributed(ast.parse("import torch")) == []


# Modules that start programs which are none of ours: pip, Python's venv, nvidia-smi, llama.cpp's.
START_OTHER_PROGRAMS = {
    f"{PACKAGE}.core.helper_process",
    f"{PACKAGE}.core.nvidia_driver",
    f"{PACKAGE}.deployment.environment",
    f"{PACKAGE}.features.export_gguf.converter",
    f"{PACKAGE}.deployment.installers",
}
STARTS = re.compile(
    r"subprocess\.(Popen|run|call|check_call|check_output|getoutput|getstatusoutput)"
    r"|os\.(system|popen|fork|forkpty|exec\w+|spawn\w+|posix_spawn\w*)|pty\.(fork|spawn)"
    r"|asyncio\.create_subprocess_\w+|(\w+\.)*ProcessPoolExecutor|runpy\.\w+"
    r"|(multiprocessing|mp|context|torch\.multiprocessing)\.(get_context|Process|Pool|\w*spawn)"
    r"|(psutil\.)?Popen|get_context|Process|Pool|fork"
)


def starts_of_processes(tree: ast.Module) -> list[str]:
    calls = (node for node in nodes_of(tree) if isinstance(node, ast.Call))
    called = (f"{ast.unparse(call.func)}:{call.lineno}" for call in calls)
    return [name for name in called if STARTS.fullmatch(name.rpartition(":")[0])]


def test_helpers_are_started_in_one_way() -> None:
    """From a folder of the user with a package of our name, any other way starts the user's."""
    starting = [
        f"{name}: {call}"
        for name, tree in trees().items()
        if name not in START_OTHER_PROGRAMS
        for call in starts_of_processes(tree)
        if name != f"{PACKAGE}.core.helper_main"
    ]
    assert starting == []


@pytest.mark.parametrize(
    "call",
    [
        'subprocess.Popen([sys.executable, "-m", "infrastructure.x"])',
        "subprocess.run(command)",
        'get_context("spawn")',
        'multiprocessing.get_context("spawn")',
        "ProcessPoolExecutor(2)",
        "concurrent.futures.ProcessPoolExecutor(2)",
        "torch.multiprocessing.spawn(work)",
        "os.execv(path, arguments)",
    ],
)
def test_another_way_is_seen(call: str) -> None:
    assert starts_of_processes(ast.parse(f"x = {call}")) != []


def test_the_quantum_layer_and_config_know_no_torch() -> None:
    light = [n for n in MODULES if n.startswith((f"{PACKAGE}.quantum", f"{PACKAGE}.config"))]
    using = [
        name
        for name in light
        for node in ast.walk(trees()[name])
        if (isinstance(node, ast.Import) and any(a.name.startswith("torch") for a in node.names))
        or (isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch"))
    ]
    assert using == []


# An object is not cut into base classes to keep a length: a concrete class that nothing makes, with
# its only subclass beside it, is one object in two places. What may stay, and why:
CUT_IN_TWO = {}
TYPE_TESTS = {"isinstance", "issubclass", "cast"}


def classes_of(name: str) -> dict[str, ast.ClassDef]:
    return {n.name: n for n in nodes_of(trees()[name]) if isinstance(n, ast.ClassDef)}


def project_classes() -> dict[tuple[str, str], ast.ClassDef]:
    return {(name, c): node for name in MODULES for c, node in classes_of(name).items()}


def names_in(name: str) -> dict[str, tuple[str, str]]:
    """What each name of a module is: the module and the class that it was defined as."""
    found = {c: (name, c) for c in classes_of(name)}
    for node in nodes_of(trees()[name]):
        if isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: (str(node.module), a.name) for a in node.names}
    return found


def used_as_values(tree: ast.AST) -> Iterator[ast.Name]:
    """Names that stand for themselves: not as a base, in an annotation or in a test of a type."""
    for field, value in ast.iter_fields(tree):
        if field in ("bases", "annotation", "returns"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.Name):
                yield node
            is_test = isinstance(node, ast.Call) and getattr(node.func, "id", "") in TYPE_TESTS
            if isinstance(node, ast.AST) and not is_test:
                yield from used_as_values(node)


def is_abstract(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    marks = [ast.unparse(d) for n in node.body for d in getattr(n, "decorator_list", [])]
    return bool(bases & {"ABC", "Protocol"}) or any("abstractmethod" in mark for mark in marks)


def cut_in_two() -> set[str]:
    classes = project_classes()
    subclasses: dict[tuple[str, str], list[str]] = {}
    made: set[tuple[str, str]] = set()
    for name, tree in trees().items():
        names = names_in(name)
        made |= {names[node.id] for node in used_as_values(tree) if node.id in names}
        for node in classes_of(name).values():
            for base in (ast.unparse(b).partition("[")[0] for b in node.bases):
                if base in names:
                    subclasses.setdefault(names[base], []).append(name)
    return {
        key[1]
        for key, modules in subclasses.items()
        if key in classes and key not in made and not is_abstract(classes[key])
        if len(modules) == 1 and modules[0].rpartition(".")[0] == key[0].rpartition(".")[0]
    }


def test_no_object_is_cut_into_base_classes() -> None:
    assert cut_in_two() <= CUT_IN_TWO.keys()


def test_an_object_that_is_cut_in_two_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "a.first": "class First: pass\nclass Second(First): pass\nclass Made: pass\n",
        "a.second": "from a.first import Made, Second\nclass Third(Second): pass\n",
        "a.third": "from a.first import Made\nclass Fourth(Made): pass\nmake = {1: Made}\n",
        "b.other": "from a.first import First\ndef f(x: First): return isinstance(x, First)\n",
    }
    monkeypatch.setattr(sys.modules[__name__], "MODULES", dict.fromkeys(parts))
    planted = {name: ast.parse(text) for name, text in parts.items()}
    monkeypatch.setattr(sys.modules[__name__], "trees", lambda: planted)
    assert cut_in_two() == {"First", "Second"}


def test_one_name_means_one_class() -> None:
    places: dict[str, list[str]] = {}
    for module, name in project_classes():
        if not name.startswith("_") and ".specification." not in module:
            places.setdefault(name, []).append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


# People call these: in the specification's samples, for stores, and in tests of their own parts.
FOR_PEOPLE = re.compile(
    r"create_(backup_system|(gpu|memory)_optimizer)|load_whole|\w+Suite|__\w+__"
)
# In a module of a known kind, or as fixtures.
FOUND_BY_NAME = {"FEATURE", "add_arguments", "run", "read_by_pipeline", "with_tiny_model"}


def unused(modules: Iterable[str]) -> set[str]:
    """Return the names that these modules define at their top level and that none of them uses.

    A name in a string counts as used, because an address such as `module:name` is one.
    """
    defined, used = set(), set()
    for name in modules:
        for node in trees()[name].body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                given = node.targets if isinstance(node, ast.Assign) else [node.target]
                defined |= {target.id for target in given if isinstance(target, ast.Name)}
        for node in nodes_of(trees()[name]):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used |= set(re.findall(r"\w+", node.value))
    return {n for n in defined - used - FOUND_BY_NAME if not FOR_PEOPLE.fullmatch(n)}


def test_what_is_defined_is_used() -> None:
    """A feature uses its own names, because nothing else knows them."""
    of_feature: dict[str, list[str]] = {}
    for name in MODULES:
        if name.startswith(f"{PACKAGE}.features."):
            of_feature.setdefault(name.split(".")[2], []).append(name)
    found = {feature: unused(modules) for feature, modules in of_feature.items()}
    found["product"] = unused(MODULES)
    assert {where: names for where, names in found.items() if names} == {}


def test_importing_everything_has_no_side_effect() -> None:
    """No signal handler, no logging set-up, no CUDA initialisation, no heavy package."""
    probe = f"""
import importlib, logging, signal, sys
before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)], list(logging.root.handlers)
for name in {sorted(n for n in MODULES if not n.endswith("__main__"))!r}:
    importlib.import_module(name)
after = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)], list(logging.root.handlers)
assert before == after, (before, after)
heavy = {LAZY_PACKAGES!r} & set(sys.modules)
assert not heavy, heavy
torch = sys.modules.get("torch")
assert torch is None or not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", probe], cwd=ROOT, check=True)


def test_a_run_needs_no_torch() -> None:
    """Looking at a run, repairing and copying it answer before PyTorch would be imported."""
    names = [name for name in MODULES if name.startswith(f"{PACKAGE}.run.")]
    assert len(names) > 8
    script = f"import sys\nfor name in {names}: __import__(name)\nsys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=120)
