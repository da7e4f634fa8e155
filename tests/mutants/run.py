"""Which planted defects the quick tests find: `make mutants`. Prints a table.

    python -m tests.mutants.run [--number 600] [--seed 14] [--only store.py …] [--since COMMIT]
                                [--seconds 45] [--record] [--table]

A seed draws defects from all modules of the product; those of `named.py` come first, and with
`--number 0` alone. For each, the tests of its module that run its lines are run with it in place,
nearest first, until one fails. What was found is kept in `.mutants/`: broken off, the command goes
on from there. A survivor is tried again when its tests have changed. How many tests are tried is
limited by their recorded time of the processor, so on a busy machine the same ones are; how long
one may take, by its recorded time on the clock.
"""

import argparse
import difflib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tests.mutants import sandbox
from tests.mutants.argued import ARGUED
from tests.mutants.coverage import copies, record
from tests.mutants.forked_tests import (
    ROOT,
    Collected,
    Report,
    changed_functions,
    run_pytest,
    run_to_first_failure,
    warm_up,
)
from tests.mutants.named import named_mutants
from tests.mutants.operators import (
    Mutant,
    compiles,
    lines_of_functions,
    mutants_of,
    statement_lines,
)

SEED, NUMBER = 14, 600
STATE = ROOT / ".mutants"
PRODUCT = "infrastructure"
WIDE_SECONDS = 45.0  # of the processor: what is not killed by then is called a survivor
SHORTEST_LIMIT_SECONDS, LIMIT_FACTOR = 30.0, 8.0
START_SECONDS = 120.0
SLOW_TEST_SECONDS = 2.0  # a failure of a longer one counts when it happens again
NOTHING_FAILED = (0, 5)  # pytest's exit status; 5: no test was left
# "broken": no test was begun, which says nothing
KILLED = ("failed", "crashed", "timeout")
KINDS = dict.fromkeys(KILLED, "killed") | {"survived": "survived", "untested": "survived"}
KINDS["broken"] = "open"


@functools.cache
def modules() -> list[str]:
    """Return the paths of all modules that may be mutated, relative to the repository."""
    paths = sorted((ROOT / PRODUCT).rglob("[!_]*.py"))
    return [str(path.relative_to(ROOT)) for path in paths]


def mirror_of(module: str) -> list[str]:
    """Return the quick test files of a module by the mirror of the tree, its own ones first.

    The files of its folder that test no single module follow. A module without a file of its own
    gets all files of its folder, and the declaration of a feature the rules of the architecture.
    The field cases come last.
    """
    source = (ROOT / module).parent
    folder, name = ROOT / "tests" / source.relative_to(ROOT / PRODUCT), Path(module).stem
    own = sorted({*folder.glob(f"test_{name}.py"), *folder.glob(f"test_{name}_*.py")})
    every = sorted(folder.glob("test_*.py"))
    shared = [path for path in every if not (source / path.name.removeprefix("test_")).exists()]
    near = [*own, *shared] if own else every
    rules = [ROOT / "tests/test_architecture.py"] * (name == "feature")
    field_cases = sorted((ROOT / "tests/field").glob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in dict.fromkeys([*near, *rules, *field_cases])]


def draw(
    number: int, seed: int, paths: Sequence[str] | None = None, since: str = ""
) -> list[Mutant]:
    """The defects of `paths` (default: all) whose names, with the seed, have the smallest hashes.

    So an edit of a module draws others in few places, and what was found before stays of use.
    """
    paths = modules() if paths is None else paths
    sources = {path: (ROOT / path).read_text() for path in paths}
    found = [mutant for path, source in sources.items() for mutant in mutants_of(path, source)]
    if since:
        new = {path: new_lines(path, since) for path in paths}
        found = [mutant for mutant in found if mutant.line in new[mutant.module]]
    found.sort(key=lambda mutant: hashlib.sha256(f"{seed}:{mutant.key}".encode()).digest())
    named = [mutant for mutant in named_mutants(ROOT) if mutant.module in paths and not since]
    drawn = (mutant for mutant in found if compiles(mutant, sources[mutant.module]))
    return named + list(islice(drawn, number))


def new_lines(path: str, commit: str) -> set[int]:
    """Return the lines of a file that are not in a commit."""
    command = ["git", "diff", "-U0", commit, "--", path]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found: set[int] = set()
    for start, count in re.findall(r"^@@ [^+]*\+(\d+)(?:,(\d+))? @@", text, re.MULTILINE):
        found.update(range(int(start), int(start) + int(count or 1)))
    return found


@dataclass
class Test:
    """A quick test, the lines of the mutated modules that run in it, and how long it takes."""

    name: str
    seconds: float
    lines: dict[str, set[int]]
    processor_seconds: float

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


@dataclass
class Coverage:
    """All recorded tests; kept in a file for each test file."""

    folder: Path = STATE / "coverage"
    wide_seconds: float = WIDE_SECONDS
    tests: list[Test] = field(default_factory=list)
    hashes: dict[str, str] = field(default_factory=dict)

    def complete(self, files: Sequence[str], only_known: bool, jobs: int) -> None:
        """Record those of the test files that are new or have changed, if that is wanted, and read
        all of them."""
        (STATE / "sources").mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in modules():
            text = (ROOT / path).read_text()
            (STATE / "sources" / _hash(text)).write_text(text)
        new = [file for file in files if not self._read(file)]
        if new and not only_known:
            print_line(f"recording {len(new)} files of tests")
            share_out(self._record, [new[number::jobs] for number in range(jobs)], jobs)
        for file in files:
            self._take(file)

    def _read(self, file: str) -> dict[str, Any]:
        kept = self.folder / f"{file.replace('/', '.')}.json"
        found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
        if found.get("hash") != _hash((ROOT / file).read_text()):
            return {}
        # Its own module: a line that has changed there is one that no recorded test runs.
        name = Path(file).name.removeprefix("test_")
        own = [path for path in modules() if Path(path).name == name]
        is_same = all(
            found["sources"].get(path) == _hash((ROOT / path).read_text()) for path in own
        )
        return found if is_same else {}

    def _record(self, files: Sequence[str]) -> None:
        sources = {path: _hash((ROOT / path).read_text()) for path in modules()}
        lines = work_folder().with_name(f"lines-{os.getpid()}")
        shutil.rmtree(lines, ignore_errors=True)
        lines.mkdir()
        instead = copies(modules(), STATE / f"noting-{os.getpid()}", lines)
        work = functools.partial(record, files, lines)
        forked = sandbox.Forked(work, work_folder(), instead)
        try:
            for found in forked.reports(lambda: 1800.0):
                file, tests = found["file"], found["tests"]
                kept = self.folder / f"{file.replace('/', '.')}.json"
                digest = _hash((ROOT / file).read_text())
                _write(kept, {"hash": digest, "sources": sources, "tests": tests})
                seconds = sum(test["seconds"] for test in tests)
                print_line(f"recorded {file}: {len(tests)} tests, {seconds:.0f} s")
                if failed := ", ".join(test["test"] for test in tests if not test["passed"]):
                    print_line(f"  without what fails or is skipped here: {failed[:300]}")
        finally:
            forked.close()

    def _take(self, file: str) -> None:
        found = self._read(file)
        if not found:
            return  # could not be recorded
        self.hashes[file] = found["hash"]
        for test in found["tests"]:
            if test["passed"]:
                lines = {
                    path: _lines_now(path, found["sources"][path], numbers)
                    for path, numbers in test["lines"].items()
                    if path in found["sources"]
                }
                times = {name: test[name] for name in ("seconds", "processor_seconds")}
                self.tests.append(Test(lines=lines, name=test["test"], **times))

    def of(self, mutant: Mutant) -> list[Test]:
        """Return the tests of its mirror that run the place, nearest first, to a limit of time."""
        mirror = set(mirror_of(mutant.module))
        source = (ROOT / mutant.module).read_text()
        last = mutant.line + mutant.old.rstrip("\n").count("\n")
        places = (statement_lines(source, n) for n in range(mutant.line, last + 1))
        place: set[int] = set().union(*places)
        runs_when_called = any(a <= mutant.line <= b for a, b in lines_of_functions(source))
        chosen, seconds = [], 0.0
        share = functools.partial(self._share, mutant.module)
        near = [test for test in self.tests if test.file in mirror]
        for test in sorted(
            near, key=lambda t: t.processor_seconds * (1 if share(t.file) > 0.5 else 3)
        ):
            lines = test.lines.get(mutant.module, set())
            if lines & place or (lines and not runs_when_called):
                seconds += test.processor_seconds
                if seconds > self.wide_seconds and chosen and mutant.operator != "named":
                    break
                chosen.append(test)
        return sorted(chosen, key=lambda t: (-share(t.file), t.file, t.processor_seconds))

    @functools.cache  # noqa: B019
    def _share(self, module: str, file: str) -> float:
        """How much of what a test file runs of the mutated modules is of this one."""
        if file.endswith(f"/test_{module.rpartition('/')[2]}"):
            return 1.0
        runs: dict[str, set[int]] = defaultdict(set)
        for test in self.tests:
            if test.file == file:
                for path, lines in test.lines.items():
                    runs[path] |= lines
        return len(runs[module]) / max(1, sum(map(len, runs.values())))

    __hash__ = object.__hash__


@functools.cache
def _moved(path: str, digest: str) -> dict[int, int]:
    """Where the lines of a module of that hash stand now."""
    before = (STATE / "sources" / digest).read_text().splitlines()
    now = (ROOT / path).read_text().splitlines()
    matcher = difflib.SequenceMatcher(None, before, now, autojunk=False)
    return {
        block.a + i + 1: block.b + i + 1
        for block in matcher.get_matching_blocks()
        for i in range(block.size)
    }


def _lines_now(path: str, digest: str, numbers: Iterable[int]) -> set[int]:
    moved = _moved(path, digest)
    return {moved[number] for number in numbers if number in moved}


@dataclass
class Results:
    """What became of each defect, a line each; the last one of a defect counts."""

    path: Path = STATE / "results.jsonl"
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def read(self) -> None:
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                result = json.loads(line)
                self.found[result["key"]] = result

    def add(self, result: dict[str, Any]) -> None:
        self.found[result["key"]] = result
        with self.path.open("a") as file:
            file.write(json.dumps(result) + "\n")

    def of(self, mutant: Mutant) -> dict[str, Any]:
        """What became of it, where the lines around its place are the same; else "broken"."""
        result = self.found.get(mutant.key)
        is_valid = result is not None and result["place"] == place_hash(mutant)
        return result if result is not None and is_valid else {"verdict": "broken"}

    def holds(self, mutant: Mutant, tests: str) -> bool:
        """Whether it need not be tried: nothing has changed, of a survivor its tests neither, or it
        survived and is argued to change nothing."""
        result = self.of(mutant)
        is_argued = result["verdict"] == "survived" and mutant.key in ARGUED
        return result["verdict"] in KILLED or is_argued or result.get("tests") == tests


def place_hash(mutant: Mutant) -> str:
    """Of the lines around the place."""
    lines = (ROOT / mutant.module).read_text().splitlines()
    return _hash("\n".join(lines[max(0, mutant.line - 6) : mutant.line + 6]))


def tests_hash(tests: list[Test], hashes: dict[str, str]) -> str:
    return _hash("\n".join(f"{test.name} {hashes[test.file]}" for test in tests))


Work = Callable[[list[Test], str, Path], Callable[[Report], None]]


def try_out(mutant: Mutant, tests: list[Test], work: Work) -> dict[str, Any]:
    """Run the tests with the defect in place, until one fails.

    Args:
        work: makes what a fork does of the tests, the mutated text and the file that it is of.
    """
    verdict = "untested"
    while tests:
        found = _run_once(mutant, tests, work)
        again = [test for test in tests if test.name == found.get("by")]
        if found["verdict"] != "failed" or not again or again[0].seconds < SLOW_TEST_SECONDS:
            return found
        if _run_once(mutant, again, work)["verdict"] != "survived":
            return found
        print_line(f"  {found['by']} failed once and passed then: it does not count")
        tests, verdict = tests[tests.index(again[0]) + 1 :], "survived"
    return {"verdict": verdict}


def _run_once(mutant: Mutant, tests: list[Test], work: Work) -> dict[str, Any]:
    path = ROOT / mutant.module
    if not mutant.fits(path.read_text()):
        return {"verdict": "broken", "why": "the module has changed meanwhile"}
    mutated = mutant.apply(path.read_text())
    text = STATE / f"mutant-{os.getpid()}.py"
    text.write_text(mutated)
    stamp = int(mutant.key[:7], 16)  # what was compiled of another defect is never taken for this
    os.utime(text, (stamp, stamp))
    seconds = {test.name: test.seconds for test in tests}
    forked = sandbox.Forked(work(tests, mutated, path), work_folder(), {path: text})
    current = ""

    def limit() -> float:
        if not current:
            return START_SECONDS
        return max(SHORTEST_LIMIT_SECONDS, LIMIT_FACTOR * seconds[current])

    try:
        for report in forked.reports(limit):
            if "failed" in report:
                return {"verdict": "failed", "by": report["failed"], "why": report["why"]}
            if "status" in report:
                survived = report["status"] in NOTHING_FAILED
                by = f"status {report['status']}"
                return {"verdict": "survived"} if survived else {"verdict": "failed", "by": by}
            current = report["test"]
        words = (work_folder() / "output.txt").read_text()[-300:]
        return {"verdict": "crashed" if current else "broken", "by": current, "why": words}
    except TimeoutError:
        return {"verdict": "timeout", "by": current}
    finally:
        forked.close()


def cold(tests: list[Test], mutated: str, path: Path) -> Callable[[Report], None]:
    """For a defect in what runs at import: the fork imports the project itself."""
    return functools.partial(run_to_first_failure, [test.name for test in tests])


def warm(collected: Collected) -> Work:
    """For a defect inside a function: the fork has everything, and replaces the function."""

    def work(tests: list[Test], mutated: str, path: Path) -> Callable[[Report], None]:
        names = [test.name for test in tests]
        return lambda report: collected.run(names, report, mutated, path)

    return work


def table(drawn: list[Mutant], results: Results) -> str:
    """Counts by module, and the survivors."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    survivors = []
    for mutant in sorted(drawn, key=lambda m: (m.module, m.line)):
        verdict = results.of(mutant)["verdict"]
        kind = KINDS[verdict]
        if kind == "survived":
            survivors.append(mutant)
            kind = "argued" if mutant.key in ARGUED else kind
        for row in (mutant.module.removeprefix("infrastructure/"), "all"):
            counts[row]["drawn"] += 1
            counts[row][kind] += 1
            counts[row]["by time"] += verdict == "timeout"
    columns = ["drawn", "killed", "by time", "survived", "argued", "open"]
    lines = [f"| module | {' | '.join(columns)} |", "| --- |" + " --: |" * len(columns)]
    for row in [*sorted(set(counts) - {"all"}), "all"]:
        numbers = (str(counts[row][column]) for column in columns)
        lines.append(f"| {row} | {' | '.join(numbers)} |")
    every = counts["all"]
    tried = every["drawn"] - every["open"]
    lines += [
        "",
        f"{every['killed']} of {tried} killed: {100 * every['killed'] / max(1, tried):.1f}%",
    ]
    if every["argued"]:
        share = 100 * every["killed"] / max(1, tried - every["argued"])
        lines += [f"without the {every['argued']} that change nothing: {share:.1f}%"]
    for mutant in survivors:
        where = f"{mutant.module}:{mutant.line} {mutant.function} ({mutant.operator})"
        lines += ["", f"{where} {mutant.key} {ARGUED.get(mutant.key, '')}".rstrip()]
        lines += [f"    - {_one_line(mutant.old)}", f"    + {_one_line(mutant.new)}"]
    return "\n".join(lines + named_table(drawn, results))


def named_table(drawn: Sequence[Mutant], results: Results) -> list[str]:
    """Lines: each defect that has a name, and the test that finds it."""
    named = [mutant for mutant in drawn if mutant.operator == "named"]
    lines = ["", "| defect with a name | found by |", "| --- | --- |"] if named else []
    for mutant in named:
        found = results.of(mutant)
        by = found.get("by", "").removeprefix("tests/").partition("[")[0].replace("::", " ")
        words = f"`{by}`" if by else KINDS[found["verdict"]]
        lines.append(f"| {mutant.function} | {words} |")
    return lines


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(path: Path, value: Any) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)


def print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def in_a_later_fork(work: Callable[[], None]) -> Callable[[], None]:
    """Fork now, before the project is imported; what is given back lets it work, and waits."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        try:
            if os.read(reading, 1):  # nothing: who was to say so has died
                work()
        finally:
            os._exit(0)
    os.close(reading)

    def let_it_work() -> None:
        os.write(writing, b"1")
        os.close(writing)
        os.waitpid(child, 0)

    return let_it_work


def work_folder() -> Path:
    """Of this process, for what is under way."""
    return STATE / f"work-{os.getpid()}"


def share_out(work: Callable[[Any], None], items: Sequence[Any], jobs: int) -> None:
    """`work` of each item, in as many processes."""
    if jobs == 1:
        for item in items:
            work(item)
        return
    children = []
    for number in range(jobs):
        child = os.fork()
        if child == 0:
            try:
                share_out(work, items[number::jobs], 1)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--number", type=int, default=NUMBER, help="defects that are drawn")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", nargs="*", default=[], help="parts of paths of modules")
    parser.add_argument("--since", default="", help="only lines that are not in this commit")
    parser.add_argument(
        "--seconds",
        type=float,
        default=WIDE_SECONDS,
        help="of the processor, for the tests of a survivor; fewer give a quick first look",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--record", action="store_true", help="only record which tests run which lines"
    )
    parser.add_argument(
        "--known", action="store_true", help="defects in functions, and tests recorded so far"
    )
    parser.add_argument("--table", action="store_true", help="print what is known, no more")
    return parser.parse_args()


def try_one(results: Results, work: Work, one: tuple[Mutant, list[Test], str]) -> None:
    """Try one defect, and keep what came of it."""
    mutant, tests, digest = one
    began = time.monotonic()
    found = try_out(mutant, tests, work)
    found |= {"key": mutant.key, "place": place_hash(mutant), "tests": digest}
    found |= {"num_tests": len(tests), "seconds": round(time.monotonic() - began, 1)}
    results.add(found)
    change = f"{mutant.operator}: {_one_line(mutant.old)[:50]} → {_one_line(mutant.new)[:50]}"
    where = f"{mutant.module}:{mutant.line}"
    print_line(
        f"{found['seconds']:6.1f} s {found['verdict']:9} {where} {change} {found.get('by', '')}"
    )


def main() -> int:
    options = parse_arguments()
    if not options.table:
        sandbox.enter("tests.mutants.run", STATE)
    paths = [path for path in modules() if any(part in path for part in options.only or [""])]
    drawn = draw(options.number, options.seed, paths, options.since)
    results = Results()
    results.read()
    if not options.table:
        names = ("work-*", "lines-*", "noting-*", "pytest-of-root")  # of one that was killed
        for left in [path for name in names for path in STATE.glob(name)]:
            shutil.rmtree(left, ignore_errors=True)
    if not options.table:
        os.environ["OMP_NUM_THREADS"] = "1"
        warm_up()
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(STATE / "pycache")
        coverage = Coverage(wide_seconds=options.seconds)
        wanted = {file for mutant in drawn for file in mirror_of(mutant.module)}
        coverage.complete(sorted(wanted), options.known, options.jobs)
        if options.record:
            return 0
        of_import, of_functions = [], []
        for mutant in drawn:
            tests = coverage.of(mutant)
            digest = tests_hash(tests, coverage.hashes)
            if not results.holds(mutant, digest) and (tests or not options.known):
                text = (ROOT / mutant.module).read_text()
                changed = changed_functions(ROOT / mutant.module, text, mutant.apply(text))
                one = (mutant, tests, digest)
                (of_import if changed is None else of_functions).append(one)
        print_line(f"to be tried: {len(of_functions)} in functions, {len(of_import)} others")
        files = sorted({test.file for _, tests, _ in of_functions for test in tests})

        def try_functions(collected: Collected) -> None:
            share_out(functools.partial(try_one, results, warm(collected)), of_functions, jobs)

        jobs = options.jobs
        if not options.known:
            later = in_a_later_fork(
                lambda: share_out(functools.partial(try_one, results, cold), of_import, jobs)
            )
        if files:
            run_pytest(files, Collected(try_functions))
        if not options.known:
            later()
        results.read()
    print(table(drawn, results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
