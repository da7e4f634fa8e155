"""Processes that begin where a Python is that has imported what they need.

A new Python takes seconds to import PyTorch, Transformers and the project; a fork of one that has
them takes none. There is one such Python for each process that runs tests, or for all workers of
one run of them, which are its forks, too. It runs no test itself, so what it forks is as new as
any: arguments, environment, folder, input and output, signals, exit code and death are a process's
own. What a command imports, and when, shows in a new Python alone.
"""

import errno
import fcntl
import functools
import gc
import importlib
import json
import os
import pickle
import runpy
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.util import spawnv_passfds  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

Work = Callable[[], object]
HEAVY = (
    "torch",
    "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_fast",
    "transformers.generation",
    "peft",
    "bitsandbytes",
    "torch.utils.tensorboard",
)
KERNELS = ("ipykernel.kernelapp", "ipywidgets")
OURS = (
    "infrastructure.deployment.deploy_training",
    "infrastructure.commands.train",
    "infrastructure.commands.resume",
    "infrastructure.commands.main",
)
count_frozen = gc.get_freeze_count
ROOT = Path(__file__).resolve().parents[1]
DEFAULT_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD)
TESTS = "TESTS_OF_THIS_RUN"  # paths of tests as a JSON list, in the server's environment
UNFLUSHED = 120  # the exit code of a Python whose last output nobody takes
MESSAGE = struct.Struct("<ci")  # how a fork stands: BEGUN and its number, ENDED and its status
BEGUN, ENDED = b"b", b"e"
SIZE = struct.Struct("<Q")
MOST_DESCRIPTORS = 16
ABOVE_ALL_OTHERS = 512  # a number of a descriptor


@dataclass(frozen=True)
class Order:
    """A process to fork; goes to the server with its input, output, errors and where it tells of
    itself."""

    work: Work
    arguments: Sequence[str]
    folder: str
    environment: dict[str, str]
    path: list[str]
    own_session: bool
    before: Callable[[], None] | None
    inherited: list[int]  # numbers of the descriptors that come with it


class Forked(subprocess.Popen[Any]):
    """A fork that does `work`, and is used as any `subprocess.Popen`.

    Args:
        work: can be pickled; an int is the exit code, None is 0.
        arguments: its `sys.argv`.
        options: of `Popen`; a `preexec_fn` can be pickled.
    """

    def __init__(self, work: Work, arguments: Sequence[str] = ("forked",), **options: Any) -> None:
        self._work = work
        self._own_session = options.pop("start_new_session", False)
        self._status = -1
        super().__init__(list(arguments), **options)

    def _execute_child(
        self, args: list[str], executable: Any, preexec_fn: Callable[[], None] | None, *rest: Any
    ) -> None:
        """Where `Popen` forks and executes, have the server fork."""
        _, inherited, folder, environment, _, _, _, *pipes = rest[:13]
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        sys.stdout.flush()
        sys.stderr.flush()
        order = Order(
            self._work,
            args,
            os.getcwd() if folder is None else os.fspath(folder),  # noqa: PTH109
            dict(os.environ if environment is None else environment),
            list(sys.path),
            self._own_session,
            preexec_fn,
            [*inherited],
        )
        ends = [end if end != -1 else own for own, end in enumerate((p2cread, c2pwrite, errwrite))]
        self._status, status = os.pipe()
        try:
            self._fork(order, [*ends, *inherited, status])
        finally:
            os.close(status)
        kind, self.pid = self._message()  # it is itself now: who signals its group means no other
        assert kind == BEGUN, f"no fork: {self.pid}"
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _fork(self, order: Order, descriptors: list[int]) -> None:
        _server().fork(order, descriptors)

    def _message(self) -> tuple[bytes, int]:
        data = os.read(self._status, MESSAGE.size)
        if len(data) < MESSAGE.size:
            raise ChildProcessError("the server of forks has ended")
        return MESSAGE.unpack(data)  # type: ignore[return-value]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """As `os.waitpid`, which knows children of this process alone."""
        if self._status == -1:
            return self.pid, 0
        os.set_blocking(self._status, not wait_flags & os.WNOHANG)
        try:
            _, status = self._message()
        except BlockingIOError:
            return 0, 0
        os.close(self._status)
        self._status = -1
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


class _Server:
    """This process's end of the Python that forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        while True:
            self._socket = socket.socket(socket.AF_UNIX)
            try:
                self._socket.connect(_server_address)
            except ConnectionRefusedError:  # no server listens there yet
                self._socket.close()
                _start_server(_server_address)
            else:
                return

    def fork(self, order: Order, descriptors: list[int]) -> None:
        data = pickle.dumps(order)
        with self._lock:
            socket.send_fds(self._socket, [SIZE.pack(len(data))], descriptors)
            self._socket.sendall(data)


@functools.cache
def _server() -> _Server:
    return _Server()


# Abstract, as Linux has them: no file, gone with the last who listens.
ADDRESS = "\0temper tests "
_server_address = f"{ADDRESS}{os.getpid()} {secrets.token_hex(8)}"


def share_server(name: str) -> None:
    """Use one server with every other process that gives this name, instead of an own one."""
    global _server_address
    _server_address = f"{ADDRESS}{name}"


def server_name() -> str:
    """What a process that this one starts gives to `share_server`, to use the same server."""
    return _server_address.removeprefix(ADDRESS)


def _start_server(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return  # another process starts it at this moment
        listener.listen(64)
        number = listener.fileno()
        subprocess.run(
            [sys.executable, "-c", f"from tests.forks import serve; serve({number})"],
            pass_fds=[number],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            check=True,
        )


def serve(number: int) -> None:
    """Fork what is ordered by who connects to a socket, until nobody is connected any more."""
    if os.fork() != 0:  # no child of who runs tests, which may look at its children
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it means the tests
    with _silent():
        import_what_takes_long(HEAVY + KERNELS + OURS)
        _remember_what_takes_long()
        if TESTS in os.environ:
            _import_tests(json.loads(os.environ.pop(TESTS)))
    freeze()
    _Serving(socket.socket(fileno=number)).until_nobody_is_connected()


def _remember_what_takes_long() -> None:
    """Look up what each training needs first: the patterns by which Transformers converts names of
    weights, the words of messages, and how a configuration is read."""
    from infrastructure.config.deployment_config import DeploymentConfig
    from infrastructure.core.messages import catalogue_files, words_of

    with suppress(ImportError):  # of an earlier Transformers
        conversions = importlib.import_module("transformers.conversion_mapping")
        conversions.get_checkpoint_conversion_mapping("llama")
    for topic in catalogue_files():
        words_of(f"{topic}.none")
    DeploymentConfig().check_supported()


def _import_tests(paths: Sequence[str]) -> None:
    """Have the modules of tests in memory, their asserts rewritten as pytest does it: once instead
    of once in each worker."""
    import pytest

    class Failures:
        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            """What cannot be imported is tried again, and shown, by each worker."""
            if not report.passed:
                name = report.nodeid.removesuffix(".py").replace("/", ".")
                sys.modules.pop(name, None)

    # Which start processes, write a folder, or hook into Python itself, of which workers are forks.
    without = ("xdist", "cacheprovider", "unraisableexception", "threadexception")
    plugins = [word for name in without for word in ("-p", f"no:{name}")]
    pytest.main(["--collect-only", "-qq", *plugins, *paths], [Failures()])


@contextmanager
def _silent() -> Iterator[None]:
    """What libraries tell each other when they are imported is not for who runs tests."""
    own = [os.dup(number) for number in (1, 2)]
    with Path(os.devnull).open("wb") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        for number, end in zip((1, 2), own, strict=True):
            os.dup2(end, number)
            os.close(end)


class _Serving:
    """The server's end."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._child_ended, self._wakeup = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for either in (listener, self._child_ended):
            self._selector.register(either, selectors.EVENT_READ)
        self._connections: set[socket.socket] = set()
        self._statuses: dict[int, tuple[int, socket.socket]] = {}  # of each fork, and whose it is

    def until_nobody_is_connected(self) -> None:
        # A handler would run in the midst of a loop over the forks: it only wakes the loop below.
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._connections.add(connection)
                    self._selector.register(connection, selectors.EVENT_READ)
                elif key.fileobj is self._child_ended:
                    self._child_ended.recv(4096)
                    self._reap()
                else:
                    self._serve(key.fileobj)  # type: ignore[arg-type]
            if not self._connections:
                return

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0] != 0:
                _send(self._statuses.pop(child[0])[0], ENDED, child[1])

    def _serve(self, connection: socket.socket) -> None:
        size, descriptors, _, _ = socket.recv_fds(connection, SIZE.size, MOST_DESCRIPTORS)
        order = _receive(connection, SIZE.unpack(size)[0]) if size else b""
        if not order:
            self._forget(connection)
            return
        try:
            pid = os.fork()
        except OSError as error:  # no memory: the others' forks go on
            _send(descriptors.pop(), ENDED, error.errno or 1)
        else:
            if pid == 0:
                self._close()
                _be(order, descriptors)
            self._statuses[pid] = descriptors.pop(), connection
        for descriptor in descriptors:
            os.close(descriptor)

    def _close(self) -> None:
        """For a fork: what is the server's, or another fork's, is not open in it."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for either in (self._listener, self._child_ended, self._wakeup, *self._connections):
            either.close()
        for status, _ in self._statuses.values():
            os.close(status)

    def _forget(self, connection: socket.socket) -> None:
        """Nobody is left who could ask for its forks."""
        self._selector.unregister(connection)
        self._connections.remove(connection)
        connection.close()
        for pid in [pid for pid, (_, whose) in self._statuses.items() if whose is connection]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _wake(*_: object) -> None:
    """A signal with no handler would not reach the file descriptor that wakes."""


def _receive(connection: socket.socket, size: int) -> bytes:
    """That many bytes, or none where the other end goes away before."""
    data = bytearray()
    while len(data) < size:
        if not (part := connection.recv(size - len(data))):
            return b""
        data += part
    return bytes(data)


def _send(status: int, kind: bytes, value: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for it
        os.write(status, MESSAGE.pack(kind, value))
    if kind == ENDED:
        os.close(status)


def _be(order: bytes, descriptors: list[int]) -> None:
    """Be the process of an order, and end."""
    code = 1
    try:
        *ends, status = descriptors
        _give_numbers(ends[:3], range(3))
        _begin_as_new()
        code = _exit_code_of(lambda: _do(pickle.loads(order), ends[3:], status))
    finally:
        os._exit(code)


def _give_numbers(descriptors: Sequence[int], numbers: Iterable[int]) -> None:
    """Those that they have in whoever ordered the process."""
    aside = []
    for descriptor in descriptors:  # its number may be another one's
        aside.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD, ABOVE_ALL_OTHERS))
        os.close(descriptor)
    for descriptor, number in zip(aside, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _begin_as_new() -> None:
    for number in DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _open_standard_files()


def _do(order: Order, inherited: Sequence[int], status: int) -> object:
    if order.own_session:
        os.setsid()
    if order.before is not None:
        order.before()
    os.chdir(order.folder)
    _set_environment(order.environment)
    entries = order.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*(entry for entry in entries if entry), *order.path]
    sys.argv = list(order.arguments)
    _send(status, BEGUN, os.getpid())
    os.close(status)
    _give_numbers(inherited, order.inherited)
    return order.work()


def _set_environment(environment: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def _open_standard_files() -> None:
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    errors = {"encoding": "utf-8", "errors": "backslashreplace"}
    sys.stderr = open(2, "w", 1, **errors, closefd=False)  # type: ignore[call-overload]  # noqa: SIM115


def _exit_code_of(work: Work) -> int:
    """Do it, and end as a Python does."""
    code: Any = 1
    try:
        code = work()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return UNFLUSHED
    return int(code or 0)


def import_what_takes_long(names: Sequence[str] = HEAVY) -> None:
    """What trainings import, into the parent of those to come."""
    is_new = any(name not in sys.modules for name in names)
    for name in names:
        importlib.import_module(name)
    if is_new:
        freeze()


def freeze() -> None:
    """Set aside what is there: who collects garbage looks at all else, and a child that does copies
    it, page by page. To count it takes a tenth of a second, at the start of each training."""
    gc.collect()
    gc.freeze()
    gc.get_freeze_count = functools.partial(int, count_frozen())  # type: ignore[assignment]


def forked_python(command: Sequence[str], **options: Any) -> Forked:
    """`Popen` for a command of this Python in a fork: `-c PROGRAM …`, `-m MODULE …`, `SCRIPT …`.

    A `-P` before them is what forks do anyway: the current folder is not looked into.
    """
    return ForkedPython(command, **options)


class ForkedPython(Forked):
    """As `forked_python`, for a subclass of `Popen` that is to be a fork."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        python, how, *arguments = [word for word in command if word != "-P"]
        assert python == sys.executable, command
        work = functools.partial(_run_script, how)
        if how in (runners := {"-c": run_program, "-m": _run_module}):
            what, *arguments = arguments
            work, how = functools.partial(runners[how], what), how if how == "-c" else what
        super().__init__(work, (how, *arguments), **options)


class OwnFork(ForkedPython):
    """A child of this very process, which has imported what its children need."""

    def _fork(self, order: Order, descriptors: list[int]) -> None:
        if os.fork() == 0:
            _be(pickle.dumps(order), [os.dup(descriptor) for descriptor in descriptors])

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        return subprocess.Popen._try_wait(self, wait_flags)  # type: ignore[attr-defined,no-any-return]


def spawned_by_fork(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """In place of `multiprocessing.util.spawnv_passfds`: a child of this very process becomes the
    Python that a pool, or a fork server, would start. What it works on reaches it as it would reach
    that one. The number of its process."""
    *_, how, program = arguments[: arguments.index("-c") + 2]
    if "resource_tracker" in program:  # which outlives the test
        return spawnv_passfds(path, arguments, descriptors)
    sys.stdout.flush()
    sys.stderr.flush()
    if (pid := os.fork()) != 0:
        return pid
    code = 1
    try:
        _keep_open(descriptors)
        _begin_as_new()
        sys.argv = [how, *arguments[arguments.index(program) + 1 :]]
        code = _exit_code_of(lambda: run_program(program))
    finally:
        os._exit(code)


def _keep_open(descriptors: Sequence[int]) -> None:
    """Of all that this process has open, besides input, output and errors. The numbers of others
    stay taken: their owners may still close them."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) not in {nowhere, *descriptors}:
            with suppress(OSError):  # that of the list itself
                os.fstat(int(name))
                os.dup2(nowhere, int(name))
    os.close(nowhere)


def _run_module(name: str) -> None:
    sys.modules.pop(name, None)  # a module that a test imported begins anew, as in a new Python
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_script(path: str) -> None:
    if path.endswith("/helper_main.py"):  # a module begins anew, as above
        sys.modules.pop(sys.argv[1], None)
    runpy.run_path(path, run_name="__main__")


def run_program(text: str) -> None:
    """What `-c` does."""
    exec(text, {"__name__": "__main__"})


def _run_main(module: str) -> object:
    return importlib.import_module(module).main()


def run_forked(command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[Any]":
    """`subprocess.run` for a command of this Python, in a fork; its output is captured, and none is
    an error.

    Raises:
        CalledProcessError: it ends with another exit code than 0; its errors are told.
    """
    done = outcome_of_forked(command, **options)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
    done.check_returncode()
    return done


def outcome_of_forked(command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[Any]":
    """As `run_forked`, with any exit code."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forked_python(command, **{**pipes, **options}) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def main_in_fork(module: str, *arguments: str, **options: Any) -> Any:
    """What `main` of a module writes to standard output, in a fork.

    Raises:
        CalledProcessError: it ends with another exit code than 0.
    """
    main = functools.partial(_run_main, module)
    with Forked(main, (module, *arguments), stdout=subprocess.PIPE, text=True, **options) as fork:
        out, _ = fork.communicate()
    if fork.returncode != 0:
        raise subprocess.CalledProcessError(fork.returncode, fork.args, out)
    return out
