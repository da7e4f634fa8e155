"""The leader's side of a training on several processes.

Its gradients are the sum of everybody's. Whatever goes wrong with a follower is an exception here,
and nowhere else: out of memory as if this process had run out of it, all the rest as a process that
is lost.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.core.errors import ProcessLostError
from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.integers import ceil_div
from infrastructure.core.launcher import LaunchedProcess
from infrastructure.optimization.compiling import is_compiled
from infrastructure.training.core.error_handlers import is_out_of_memory
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.core.state import TrainingState
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.parallel.exchange import Exchange, ExchangeError
from infrastructure.training.parallel.membership import (
    Member,
    Reception,
    by_launcher,
    end_all,
    on_this_machine,
    start_followers,
)
from infrastructure.training.parallel.messages import Channel, Message, packed_examples
from infrastructure.training.parallel.shares import (
    fingerprint,
    forget_gradients,
    gradients_of,
    loss_tensor,
    sent_tensors,
    share_seed,
    shares_of,
    trained,
    with_gradient,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A process that was told to end, or whose connection broke, is gone after so long.
PATIENCE_SECONDS = 5.0
# Who a process was that broke an exchange shows within so long.
LAST_WORDS_SECONDS = 2.0

Compute = Callable[[Sequence[Any]], MetricAccumulator]


class Team:
    """A leader's followers; they are there from the first step, or `start`, until `close`.

    Args:
        config: what the whole run is told; followers build their model from it.
        size: processes, this one included.
        adapter: the leader's, with its model and tokenizer when the team starts.
        launched_as: what a launcher said that has started the others; None: they are started here.
    """

    def __init__(
        self,
        config: DeploymentConfig,
        size: int,
        adapter: ModelAdapter,
        launched_as: LaunchedProcess | None = None,
    ) -> None:
        self.config, self.size, self.adapter = config, size, adapter
        self.launched_as = launched_as
        self.exchange: Exchange | None = None
        self._channels: dict[int, Channel] = {}
        self._processes: dict[int, HelperProcess] = {}
        self._folder: Path | None = None
        self._member: Member | None = None
        self._reception: Reception | None = None
        self._num_threads = torch.get_num_threads()

    def largest_share(self, num_examples: int) -> int:
        """How many examples of a batch one process has at most."""
        return ceil_div(num_examples, self.size)

    def launch(self) -> None:
        """Start the followers, which takes them a while; they wait for `start` then."""
        if self._reception is not None or self.exchange is not None:
            return
        with self._closed_by_errors():
            if self.launched_as is not None:
                self._member = by_launcher(self.launched_as)
            else:
                self._folder = Path(tempfile.mkdtemp(prefix="temper-"))
                self._member = on_this_machine(self._folder, 0, self.size)
            self._reception = Reception(self._member)
            if self._folder is not None:
                num_threads = self._share_of_threads if self._shares_cores else None
                started = start_followers(self._folder, self.size, num_threads)
                self._processes = dict(enumerate(started, start=1))

    def start(self) -> None:
        """Have all followers ready; nothing where they are already.

        Raises:
            ProcessLostError: a follower cannot be had; says which, and why.
        """
        if self.exchange is not None:
            return
        self.launch()
        assert self._member is not None
        with self._closed_by_errors():
            self._gather()
            self._share_model()
            if self._shares_cores:
                torch.set_num_threads(self._share_of_threads)
            self.exchange = Exchange(
                self._member.store, 0, self.size, self.adapter.device, self._look_after_all
            )

    def accumulate(
        self,
        state: TrainingState,
        examples: Sequence[Any],
        total_items: int,
        scaler: torch.amp.GradScaler | None,
        compute: Compute,
    ) -> MetricAccumulator:
        """Add the gradients of a whole batch to those that are there.

        Args:
            compute: does the same for the share of this process.

        Raises:
            torch.OutOfMemoryError: one process ran out of memory; the others wait for more work.
            ProcessLostError: a follower failed or is gone.
        """
        self.start()
        assert self.exchange is not None
        shares = shares_of(examples, self.size)
        with self._closed_by_errors():
            self._hand_out(state, shares, total_items, scaler)
            self.exchange.spread(sent_tensors(state.model))
            window, error = _tried(compute, shares[0])
            answers = [self._hear(rank) for rank in self._channels]
            error = error or next(filter(None, map(_out_of_memory, answers)), None)
            if error is None:
                self._add_up(state.model, window, answers)
        if error is not None:
            raise error
        return window

    def close(self) -> None:
        """Let the followers go: they end when nobody is connected to them. A second call does
        nothing."""
        for channel in self._channels.values():
            channel.close()
        if self._reception is not None:
            self._reception.close()
        if self.exchange is not None:
            self.exchange.close()
        end_all([*self._processes.values()], PATIENCE_SECONDS)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.exchange, self._folder, self._reception, self._member = None, None, None, None
        self._channels, self._processes = {}, {}
        if torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)

    def _gather(self) -> None:
        """Wait until everybody is connected."""
        assert self._reception is not None
        for arrived in self._reception.arrivals():
            if arrived is not None:
                self._channels[arrived[0]] = arrived[1]
            self._refuse_dead()
        self._channels = dict(sorted(self._channels.items()))

    @property
    def _shares_cores(self) -> bool:
        """Whether all processes compute with the cores of this machine; a launcher has seen to it
        that they do not take them twice."""
        return self.adapter.device.type == "cpu" and self.launched_as is None

    @property
    def _share_of_threads(self) -> int:
        return max(1, self._num_threads // self.size)

    def _share_model(self) -> None:
        """Have everybody build the model, and compare the weights that are never sent.

        Raises:
            ProcessLostError: a follower's base is another one.
        """
        model = self.adapter.model
        assert model is not None
        begin = Message(
            "begin",
            {
                "configuration": self.config.to_dict(),
                "revision": self.adapter.describe().get("revision"),
                "trained": trained(model),
                "tokenizer": self.adapter.tokenizer is not None,
                "size_grid": self.adapter.size_grid.value,
            },
            _tokenizer_files(self.adapter.tokenizer),
        )
        for rank in self._channels:
            self._send(rank, begin)
        own = fingerprint(model)
        for rank in self._channels:
            if self._hear(rank).values["fingerprint"] != own:
                raise ProcessLostError(
                    f"{self._name(rank)} has loaded other weights than the first: give all machines"
                    " the same model"
                )
        for rank in self._channels:
            self._send(rank, Message("connect"))

    def _hand_out(
        self,
        state: TrainingState,
        shares: Sequence[Sequence[Any]],
        total_items: int,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        seed = self.config.training.seed
        common = {
            "micro_batch_size": state.micro_batch_size,
            "total_items": total_items,
            "phase": state.position.phase,
            "step": state.step,
            "trained": trained(state.model),
            "is_compiled": is_compiled(state.model),
            "scale": None if scaler is None else scaler.get_scale(),
        }
        for rank in self._channels:
            packed = packed_examples(shares[rank])
            own = {
                "seed": share_seed(seed, state.step, rank),
                "examples": packed.kind,
                "facts": packed.values,
            }
            self._send(rank, Message("compute", {**common, **own}, packed.tensors))

    def _add_up(
        self, model: torch.nn.Module, window: MetricAccumulator, answers: list[Message]
    ) -> None:
        assert self.exchange is not None
        for rank in self._channels:
            self._send(rank, Message("add up"))
        of_each = [with_gradient(model), *(answer.values["with_gradient"] for answer in answers)]
        loss = loss_tensor(window.loss_sum, self.adapter.device)
        self.exchange.add_up([*gradients_of(model), loss])
        forget_gradients(model, of_each)
        window.loss_sum = loss[0]
        window.num_items += sum(answer.values["num_items"] for answer in answers)

    def _send(self, rank: int, message: Message) -> None:
        try:
            self._channels[rank].send(message)
        except OSError:
            raise self._lost(rank) from None

    def _hear(self, rank: int) -> Message:
        try:
            message = self._channels[rank].receive()
        except (EOFError, OSError):
            raise self._lost(rank) from None
        if message.kind == "failed":
            raise self._reason(message.values["text"], {rank: message.values["text"]})
        return message

    def _look_after_all(self) -> None:
        """While nobody is to say anything: whoever does has failed, or is gone.

        Raises:
            ProcessLostError: somebody is.
        """
        if wait([channel.connection for channel in self._channels.values()], timeout=0):
            raise self._reason("a process spoke out of turn")

    def _refuse_dead(self) -> None:
        for rank, process in self._processes.items():
            if process.fate() is not None:
                raise self._lost(rank)

    def _lost(self, rank: int) -> ProcessLostError:
        process = self._processes.get(rank)
        fate = None if process is None else process.fate(PATIENCE_SECONDS)
        return ProcessLostError(
            f"{self._name(rank)} is gone: {fate or 'its connection broke'}; the same command goes"
            " on from the last checkpoint"
        )

    def _name(self, rank: int) -> str:
        process = self._processes.get(rank)
        number = "" if process is None else f", pid {process.pid}"
        return f"the process of rank {rank} (of {self.size}{number})"

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        """A team in which something went wrong half-way is of no use; the next step starts another.

        Raises:
            ProcessLostError: in place of what torch.distributed says when somebody is gone.
        """
        try:
            yield
        except ExchangeError as error:
            reason = self._reason(str(error))
            self.close()
            raise reason from None
        except BaseException:
            self.close()
            raise

    def _reason(self, otherwise: str, reasons: dict[int, str] | None = None) -> ProcessLostError:
        """Who it was. When one process dies, the exchange fails in others too: one that is gone
        without a word is named before one that has said something.

        Args:
            otherwise: what to say where it was nobody.
            reasons: what has been said already, by rank.
        """
        reasons = dict(reasons or {})
        living = {channel.connection: rank for rank, channel in self._channels.items()}
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while living and time.monotonic() < deadline:
            for connection in wait([*living], LAST_WORDS_SECONDS / 10):
                rank = living[connection]  # type: ignore[index]
                try:
                    message = self._channels[rank].receive()
                except (EOFError, OSError):
                    living.pop(connection)  # type: ignore[call-overload]
                    if rank not in reasons:
                        return self._lost(rank)
                else:
                    if message.kind == "failed":
                        reasons[rank] = message.values["text"]
        for rank, text in reasons.items():
            return ProcessLostError(f"{self._name(rank)} failed: {text}")
        return ProcessLostError(f"the exchange between the processes failed: {otherwise}")


def _tried(compute: Compute, share: Sequence[Any]) -> tuple[MetricAccumulator, Exception | None]:
    """What this process came to, or that its memory was too small: the others work on meanwhile."""
    try:
        return compute(share), None
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return MetricAccumulator(), error


def _out_of_memory(answer: Message) -> Exception | None:
    is_short = answer.kind == "out of memory"
    return torch.OutOfMemoryError(answer.values["text"]) if is_short else None


def _tokenizer_files(tokenizer: "PreTrainedTokenizerBase | None") -> dict[str, torch.Tensor]:
    """The files of a tokenizer as bytes, for machines that do not see this disk."""
    if tokenizer is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {
            str(file.relative_to(folder)): torch.frombuffer(
                bytearray(file.read_bytes()), dtype=torch.uint8
            )
            for file in sorted(Path(folder).rglob("*"))
            if file.is_file() and file.stat().st_size
        }
