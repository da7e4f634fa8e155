"""A follower: forward and backward of what the leader gives it, and nothing else.

It holds nothing that could be lost, so it ends at once when the leader does.
"""

import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

from infrastructure.backup.state.random_state import seed_everything
from infrastructure.optimization.compiling import is_compiled
from infrastructure.training.core.error_handlers import (
    free_memory,
    is_out_of_memory,
    release_traceback,
)
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.forward.gradient_accumulation import accumulate_gradients
from infrastructure.training.model_adapters.base_adapter import ModelAdapter
from infrastructure.training.parallel.exchange import Exchange
from infrastructure.training.parallel.messages import Channel, Message, unpacked_examples
from infrastructure.training.parallel.shares import (
    choose_trained,
    gradients_of,
    loss_tensor,
    sent_tensors,
    with_gradient,
)
from infrastructure.training.strategies.base_strategy import TrainingStrategy


def listen(
    channel: Channel, leave: Callable[[], None] = lambda: os._exit(0)
) -> Callable[[], Message]:
    """Read what the leader says in a thread, which ends this process when the leader has gone,
    whatever it waits for.

    Returns:
        Gives the next message; waits for it.
    """
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def read() -> None:
        try:
            while True:
                messages.put(channel.receive())
        except (EOFError, OSError):
            leave()

    threading.Thread(target=read, name="leader", daemon=True).start()
    return messages.get


class Follower:
    """Serves one leader until it goes.

    Args:
        hear: gives the leader's next message.
    """

    def __init__(
        self,
        channel: Channel,
        hear: Callable[[], Message],
        exchange: Exchange,
        adapter: ModelAdapter,
        strategy: TrainingStrategy,
    ) -> None:
        assert adapter.model is not None
        self.channel, self.hear, self.exchange = channel, hear, exchange
        self.model, self.adapter, self.strategy = adapter.model, adapter, strategy
        self.scaler = strategy.precision.create_scaler()
        # A strategy wants one; it is never stepped, and so takes no memory.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.window = MetricAccumulator()

    def serve(self) -> None:
        """Do what is asked; does not return."""
        self.model.train()
        while True:
            message = self.hear()
            if message.kind == "add up":
                self._add_up()
            else:
                self.channel.send(self._compute(message))

    def _compute(self, message: Message) -> Message:
        """Gradients of a share of the batch, from the leader's weights."""
        values = message.values
        if values["is_compiled"] != is_compiled(self.model):
            self.adapter.set_compiled(values["is_compiled"])
        if values["phase"] != self.strategy.entered:
            self.strategy.take_form(self.model, self.optimizer, values["phase"])
        choose_trained(self.model, values["trained"])
        self.model.zero_grad(set_to_none=True)
        self.exchange.spread(sent_tensors(self.model))
        seed_everything(values["seed"])
        if self.scaler is not None:
            self.scaler.scale(torch.zeros((), device=self.adapter.device))  # makes its tensors
            self.scaler.update(values["scale"])
        examples = unpacked_examples(Message(values["examples"], values["facts"], message.tensors))
        self.strategy.begin_step(values["step"], examples)
        try:
            self.window = self._accumulate(examples, values)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            release_traceback(error)
            text = str(error)
        else:
            facts = {"num_items": self.window.num_items}
            return Message("done", {**facts, "with_gradient": with_gradient(self.model)})
        self.model.zero_grad(set_to_none=True)
        free_memory(self.adapter.device)
        return Message("out of memory", {"text": text})

    def _accumulate(self, examples: list[Any], values: dict[str, Any]) -> MetricAccumulator:
        return accumulate_gradients(
            self.model,
            self.adapter,
            self.strategy,
            self.optimizer,
            self.scaler,
            examples,
            micro_batch_size=values["micro_batch_size"],
            total_items=values["total_items"],
        )

    def _add_up(self) -> None:
        loss = loss_tensor(self.window.loss_sum, self.adapter.device)
        self.exchange.add_up([*gradients_of(self.model), loss])
        self.model.zero_grad(set_to_none=True)
