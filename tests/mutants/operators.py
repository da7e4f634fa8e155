"""Small defects of a source text: each is one change at one place, as text, so lines stay where
they are.

What has no effect that a test could want is left alone: annotations, docstrings, the words of an
error or of the log, assertions for the type checker or of equal lengths (`zip` with `strict`, which
the linter wants), methods without a body.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
ORDER_IS_NOTHING = {"min", "max", "suppress", "isinstance", "issubclass"}
OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNORDERED = {"sorted": "list", "reversed": "list"}
KEPT_DECORATORS = {
    "property", "staticmethod", "classmethod", "dataclass", "contextmanager", "contextlib",
    "abstractmethod", "abc", "overload", "final", "runtime_checkable", "functools",
}  # fmt: skip
WORDS_ONLY = {"__repr__", "__str__"}
LOGGERS = {"logger", "logging", "log", "warnings", "print"}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "warn"}


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        module: path of the file, relative to the repository.
        function: the qualified name that the place lies in; "" at the module's own level.
        start, end: bytes of the source that are replaced.
        line: where they begin, from 1 on.
        key: names the mutant by what it is, not by where: lines above may come and go.
    """

    module: str
    function: str
    operator: str
    start: int
    end: int
    line: int
    old: str
    new: str
    key: str = ""

    def fits(self, source: str) -> bool:
        """Whether what it replaces stands at its place."""
        return source.encode()[self.start : self.end] == self.old.encode()

    def apply(self, source: str) -> str:
        """The module's text with the defect in it."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return all changes of a module, in the order of the text; a few do not compile."""
    found = _Finder(module, source).run()
    seen: Counter[str] = Counter()
    named = []
    for mutant in sorted(set(found), key=lambda m: (m.start, m.end, m.operator, m.new)):
        text = "\0".join((module, mutant.function, mutant.operator, mutant.old, mutant.new))
        seen[text] += 1
        digest = hashlib.sha256(f"{text}\0{seen[text]}".encode()).hexdigest()[:16]
        named.append(replace(mutant, key=digest))
    return named


def compiles(mutant: Mutant, source: str) -> bool:
    """Return whether a change leaves a program."""
    try:
        compile(mutant.apply(source), "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder:
    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source
        self.data = source.encode()
        self.line_starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.line_starts.append(self.line_starts[-1] + len(line))
        self.scope: list[str] = []
        self.found: list[Mutant] = []

    def run(self) -> list[Mutant]:
        self._body(ast.parse(self.source).body)
        return self.found

    # -- where ------------------------------------------------------------------------------------

    def _span(self, node: ast.AST) -> tuple[int, int]:
        start = self.line_starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self.line_starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start, end

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.data[start:end].decode()

    def _add(self, operator: str, node: ast.AST, new: str) -> None:
        start, end = self._span(node)
        old = self.data[start:end].decode()
        line = self.data.count(b"\n", 0, start) + 1
        function = ".".join(self.scope)
        self.found.append(Mutant(self.module, function, operator, start, end, line, old, new))

    # -- statements -------------------------------------------------------------------------------

    def _body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.ClassDef():
                self._decorators(node)
                self.scope.append(node.name)
                self._body(node.body)
                self.scope.pop()
            case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Pass() | ast.Global():
                pass
            case ast.Expr(value=ast.Constant()):
                pass  # a docstring
            case ast.Expr(value=ast.Call() as call) if _is_log(call):
                pass
            case ast.Expr(value=value):
                self._add("remove statement", node, "pass")
                self._expression(value)
            case ast.AnnAssign():
                if node.value is not None:
                    self._removed_assignment(node, [node.target])
                    self._expression(node.value)
            case ast.Assign():
                self._removed_assignment(node, node.targets)
                self._expression(node.value)
            case ast.AugAssign():
                self._add("remove statement", node, "pass")
                other = ARITHMETIC.get(type(node.op))
                if other is not None and not _is_text(node.value):
                    new = ast.unparse(ast.AugAssign(node.target, other(), node.value))
                    self._add("arithmetic", node, new)
                self._expression(node.value)
            case ast.Return():
                self._return(node)
            case ast.Raise():
                if node.exc is not None or node.cause is not None:
                    self._add("remove raise", node, "pass")
                else:
                    self._add("swallow error", node, "pass")
            case ast.Delete():
                self._add("remove statement", node, "pass")
            case ast.Break():
                self._add("break and continue", node, "continue")
            case ast.Continue():
                self._add("break and continue", node, "break")
            case ast.If() | ast.While():
                if _is_typing(node.test):
                    return
                self._condition(node.test)
                self._expression(node.test)
                self._body(node.body)
                self._body(node.orelse)
            case ast.For():
                self._expression(node.iter)
                self._body(node.body)
                self._body(node.orelse)
            case ast.With():
                self._with(node)
            case ast.Try():
                self._try(node)
            case ast.Match():
                self._expression(node.subject)
                for case in node.cases:
                    if case.guard is not None:
                        self._condition(case.guard)
                        self._expression(case.guard)
                    self._body(case.body)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in WORDS_ONLY or _has_no_body(node):
            return
        if any(_name_of(decorator) == "overload" for decorator in node.decorator_list):
            return
        self._decorators(node)
        self.scope.append(node.name)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self._expression(default)
        self._body(node.body)
        self.scope.pop()

    def _decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            if _name_of(decorator).partition(".")[0] not in KEPT_DECORATORS:
                start, _ = self._span(decorator)
                at = self.data.rindex(b"@", 0, start)
                _, end = self._span(decorator)
                old = self.data[at:end].decode()
                line = self.data.count(b"\n", 0, at) + 1
                self.found.append(
                    Mutant(
                        self.module,
                        ".".join([*self.scope, node.name]),
                        "remove decorator",
                        at,
                        end,
                        line,
                        old,
                        "#" + old.replace("\n", " "),
                    )
                )

    def _removed_assignment(self, node: ast.stmt, targets: list[ast.expr]) -> None:
        """Without it a new name would be missing; an attribute or an item keeps its old value."""
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            self._add("remove statement", node, "pass")

    def _return(self, node: ast.Return) -> None:
        value = node.value
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            return
        if not isinstance(value, ast.Constant):
            self._add("return None", node, "return None")
        self._expression(value)

    def _with(self, node: ast.With) -> None:
        for item in node.items:
            if item.optional_vars is None:
                call = f'__import__("contextlib").nullcontext({self._text(item.context_expr)})'
                lazily = call.replace(self._text(item.context_expr), "")
                self._add("remove context", item.context_expr, lazily)
            self._expression(item.context_expr)
        self._body(node.body)

    def _try(self, node: ast.Try) -> None:
        self._body(node.body)
        for handler in node.handlers:
            first, last = handler.body[0], handler.body[-1]
            if not (len(handler.body) == 1 and isinstance(first, ast.Raise)):
                (start, _), (_, end) = self._span(first), self._span(last)
                line = self.data.count(b"\n", 0, start) + 1
                old = self.data[start:end].decode()
                function = ".".join(self.scope)
                self.found.append(
                    Mutant(self.module, function, "do not handle", start, end, line, old, "raise")
                )
            self._body(handler.body)
        self._body(node.orelse)
        self._body(node.finalbody)

    # -- expressions ------------------------------------------------------------------------------

    def _condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.Constant):
            return
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return  # "drop not" does the same
        self._add("negate condition", test, f"(not ({self._text(test)}))")

    def _expressions(self, nodes: list[ast.expr]) -> None:
        for node in nodes:
            self._expression(node)

    def _expression(self, node: ast.expr | None) -> None:
        match node:
            case None | ast.JoinedStr() | ast.Name():
                pass
            case ast.Constant():
                self._constant(node)
            case ast.Compare():
                self._compare(node)
            case ast.BoolOp():
                other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                self._add("and, or", node, f"({ast.unparse(ast.BoolOp(other, node.values))})")
                for index in range(len(node.values)):
                    rest = [v for i, v in enumerate(node.values) if i != index]
                    kept = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                    self._add("drop operand", node, f"({ast.unparse(kept)})")
                self._expressions(node.values)
            case ast.BinOp():
                other = ARITHMETIC.get(type(node.op))
                if other and not _is_text(node.left) and not _is_text(node.right):
                    new = ast.unparse(ast.BinOp(node.left, other(), node.right))
                    self._add("arithmetic", node, f"({new})")
                self._expressions([node.left, node.right])
            case ast.UnaryOp():
                if isinstance(node.op, ast.Not):
                    self._add("drop not", node, f"({self._text(node.operand)})")
                elif isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
                    self._add("drop minus", node, f"({self._text(node.operand)})")
                self._expression(node.operand)
            case ast.IfExp():
                self._condition(node.test)
                self._expressions([node.test, node.body, node.orelse])
            case ast.Call():
                self._call(node)
            case ast.Subscript():
                self._subscript(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                self._expression(node.elt)
                self._generators(node.generators)
            case ast.DictComp():
                self._expressions([node.key, node.value])
                self._generators(node.generators)
            case ast.Lambda():
                self._expressions([*node.args.defaults, node.body])
            case ast.Tuple() | ast.List() | ast.Set():
                self._expressions(node.elts)
            case ast.Dict():
                self._expressions([n for n in [*node.keys, *node.values] if n is not None])
            case ast.Attribute() | ast.Starred() | ast.Await():
                self._expression(node.value)
            case ast.NamedExpr():
                self._expression(node.value)
            case ast.Yield() | ast.YieldFrom():
                self._expression(node.value)

    def _generators(self, generators: list[ast.comprehension]) -> None:
        for generator in generators:
            self._expression(generator.iter)
            for test in generator.ifs:
                self._condition(test)
                self._expression(test)

    def _constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self._add("constant", node, str(node.value + 1))
            self._add("constant", node, f"({node.value - 1})")
        elif isinstance(node.value, float):
            self._add("constant", node, str(node.value + 1.0))
            if node.value:
                self._add("constant", node, str(node.value * 2.0))

    def _compare(self, node: ast.Compare) -> None:
        for index, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                ops = [other() if i == index else op for i, op in enumerate(node.ops)]
                new = ast.unparse(ast.Compare(node.left, ops, node.comparators))
                self._add("comparison", node, f"({new})")
        self._expressions([node.left, *node.comparators])

    def _call(self, node: ast.Call) -> None:
        if _is_log(node) or _name_of(node.func) in ("TypeVar", "cast", "isinstance", "super"):
            return
        if _is_error(node):
            return  # words
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in OTHER_FUNCTION:
            self._add("other function", node.func, OTHER_FUNCTION[name])
        if name in UNORDERED and len(node.args) == 1 and not node.keywords:
            self._add("leave the order", node.func, UNORDERED[name])
        plain = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
        is_ordered = _name_of(node.func).rpartition(".")[2] not in ORDER_IS_NOTHING
        all_plain = is_ordered and len(plain) >= 2 and plain == node.args
        if all_plain and ast.dump(plain[0]) != ast.dump(plain[1]):
            swapped = [plain[1], plain[0], *plain[2:]]
            new = ast.unparse(ast.Call(node.func, swapped, node.keywords))
            self._add("swap arguments", node, new)
        keywords = [k for k in node.keywords if name != "zip" or k.arg != "strict"]
        for keyword in keywords:
            rest = [k for k in node.keywords if k is not keyword]
            new = ast.unparse(ast.Call(node.func, node.args, rest))
            self._add("drop keyword", node, new)
        self._expressions([node.func, *node.args, *(k.value for k in keywords)])

    def _subscript(self, node: ast.Subscript) -> None:
        self._expression(node.value)
        for part in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            if not isinstance(part, ast.Slice):
                self._expression(part)
                continue
            for bound in ("lower", "upper", "step"):
                value = getattr(part, bound)
                if value is None:
                    continue
                kept = {b: getattr(part, b) for b in ("lower", "upper", "step") if b != bound}
                self._add("slice bound", part, ast.unparse(ast.Slice(**kept)))
                self._expression(value)


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return f"{_name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _is_log(call: ast.Call) -> bool:
    parts = _name_of(call.func).split(".")
    logs = any(part in LOGGERS for part in parts[:-1]) and parts[-1] in LOG_METHODS
    return logs or parts == ["print"]


def _is_error(call: ast.Call) -> bool:
    return _name_of(call.func).rpartition(".")[2].endswith(("Error", "Exception"))


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return constant or isinstance(node, ast.JoinedStr)


def _is_typing(test: ast.expr) -> bool:
    return _name_of(test).rpartition(".")[2] == "TYPE_CHECKING"


def _has_no_body(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return all(
        isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in node.body
    )


def lines_of_functions(source: str) -> Iterator[tuple[int, int]]:
    """First and last line of each function's body: what runs when it is called."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.body[0].lineno, node.end_lineno or node.lineno


def statement_lines(source: str, line: int) -> set[int]:
    """The lines of the innermost statement there; of a compound one, those before its body."""
    best: tuple[int, int] | None = None
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
        is_inner = best is None or node.lineno >= best[0]
        if node.lineno <= line <= end and is_inner:
            best = (node.lineno, end)
    return set(range(best[0], best[1] + 1)) if best else {line}
