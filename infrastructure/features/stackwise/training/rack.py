"""The rack: a model as its embedding, its layers, and the part above; each part can run alone.

The layers are found by structure: the list of modules that pass hidden states (B, L, d) from one to
the next. Running the model once shows which parameters are below and above them. So no architecture
is recognized by name. `check` verifies that the parts give the same result as the whole model.

To run a part, the layers that are left out are replaced while the model runs. The names of all
parameters stay the same, and the model itself computes positions, masks and rotary embeddings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase
from infrastructure.models.model_inputs import (
    PROBE_ERRORS,
    call_model,
    compute_dtype,
    inner_model,
    logits_of,
    probing,
    relative_difference,
    tolerance,
)

NUM_PROBE_TOKENS = 8
PROBE = "probe_input"  # an attribute with the input of models that do not run on token ids


class _StoppedError(Exception):
    """An exception that ends a model's forward pass early, and contains the hidden states."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__(phrase("stackwise.layers_above_not_run"))
        self.hidden = hidden


class StandIn(torch.nn.Module):
    """A replacement for a layer that is left out. It returns its input, or given hidden states.

    Attributes:
        start: hidden states that are returned instead of the input.
        stops: True ends the model's forward pass here.
    """

    def __init__(
        self, layer: torch.nn.Module, gives_tuple: bool, start: torch.Tensor | None, stops: bool
    ) -> None:
        super().__init__()
        self.__dict__["layer"] = layer  # not registered, so it is not in the state dict
        self.gives_tuple, self.start, self.stops = gives_tuple, start, stops

    def __getattr__(self, name: str) -> Any:
        """Look up missing attributes in the replaced layer, because models read some of them."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["layer"], name)

    def forward(self, *given: object, **named: object) -> object:
        hidden = first_tensor(given, named) if self.start is None else self.start
        if self.stops:
            raise _StoppedError(hidden)
        return (hidden,) if self.gives_tuple else hidden


class Rack:
    """The layers of a model and the parts around them, which are found by running the model once.

    Attributes:
        layers: the layers, from the input up.
        below, above: names of the parameters that run before the first layer and after the last
            one; a tied head is below.
        hidden_size: d.

    Raises:
        ValueError: the model has no list of layers that can run alone; the message gives the
            reason.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        device = next(model.parameters()).device
        example = getattr(inner_model(model), PROBE, None)
        if example is None:
            example = torch.arange(NUM_PROBE_TOKENS, device=device).unsqueeze(0)
        self._probe = {"input_ids": example}
        self.layers, self.path = find_layers(model, self._try)
        self._gives_tuple = False
        self.hidden_size = 0
        self.below, self.above = self._sort_parameters()

    def __len__(self) -> int:
        return len(self.layers)

    def _try(self) -> None:
        try:
            call_model(self.model, self._probe)
        except PROBE_ERRORS as error:
            raise InputError(
                "stackwise.model_cannot_run",
                model=type(inner_model(self.model)).__name__,
                error_type=type(error).__name__,
                error=error,
            ) from error

    def _sort_parameters(self) -> tuple[list[str], list[str]]:
        """Return the names of the parameters that run before the layers and after them."""
        in_layers = {id(p) for p in self.layers.parameters()}
        has_run = {"layers": False}
        used_before: set[int] = set()

        def note(module: torch.nn.Module, *_: object) -> None:
            if not has_run["layers"]:
                used_before.update(id(p) for p in module.parameters(recurse=False))

        def first_layer(_module: torch.nn.Module, _given: object, _named: object) -> None:
            has_run["layers"] = True

        def first_output(
            _module: torch.nn.Module,
            _given: object,
            output: torch.Tensor | tuple[torch.Tensor, ...],
        ) -> None:
            self._gives_tuple = isinstance(output, tuple)
            hidden = output[0] if isinstance(output, tuple) else output
            self.hidden_size = hidden.shape[-1]

        handles = [m.register_forward_pre_hook(note) for m in self.model.modules()]
        first: torch.nn.Module = self.layers[0]
        handles.append(first.register_forward_pre_hook(first_layer, with_kwargs=True))
        handles.append(first.register_forward_hook(first_output))
        try:
            with probing(self.model), torch.no_grad():
                call_model(self.model, self._probe)
        finally:
            for handle in handles:
                handle.remove()
        outside = [(n, p) for n, p in self.model.named_parameters() if id(p) not in in_layers]
        below = [name for name, p in outside if id(p) in used_before]
        above = [name for name, p in outside if id(p) not in used_before]
        return below, above

    def parameters_of(self, first: int, last: int) -> list[tuple[str, torch.nn.Parameter]]:
        """Return the parameters of layers [first, last) with their names in the model."""
        wanted = {id(p) for layer in self.layers[first:last] for p in layer.parameters()}
        return [(name, p) for name, p in self.model.named_parameters() if id(p) in wanted]

    @contextmanager
    def span(
        self, first: int, last: int, start: torch.Tensor | None = None, *, stops: bool = False
    ) -> Iterator[None]:
        """Make the model run only layers [first, last) in the context.

        Args:
            start: hidden states (B, L, d) that layer `first` gets; None: the embedding's output.
            stops: end the forward pass where layer `last` would begin; see `hidden_at`.
        """
        modules = self.layers._modules
        real = dict(self.layers.named_children())
        assert 0 <= first <= last <= len(real)
        try:
            for index, (key, layer) in enumerate(real.items()):
                if first <= index < last:
                    continue
                is_start = start is not None and index == first - 1
                modules[key] = StandIn(
                    layer,
                    self._gives_tuple,
                    start if is_start else None,
                    stops and index == last,
                )
            with self._given(first, start if first == 0 else None):
                yield
        finally:
            modules.update(real)

    @contextmanager
    def _given(self, first: int, start: torch.Tensor | None) -> Iterator[None]:
        """Replace the input of layer `first` by `start` in the context, unless it is None."""
        if start is None or first >= len(self):
            yield
            return
        handle = self.layers[first].register_forward_pre_hook(
            lambda _module, given, named: _with_first(given, named, start), with_kwargs=True
        )
        try:
            yield
        finally:
            handle.remove()

    def hidden_at(
        self,
        layer: int,
        run: Callable[[], object],
        first: int = 0,
        start: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the hidden states (B, L, d) that a layer would get as input, without running it.

        Args:
            run: runs the model once, in any way.
            first, start: as in `span`.

        Raises:
            ValueError: `run` did not run the model.
        """
        if layer == len(self):
            with self.output_of(layer - 1) as outputs, self.span(first, layer, start):
                run()
            if outputs:
                return outputs[-1]
            raise InputError("stackwise.layers_not_run")
        try:
            with self.span(first, layer, start, stops=True):
                run()
        except _StoppedError as stopped:
            return stopped.hidden
        raise InputError("stackwise.layers_not_run")

    @contextmanager
    def output_of(self, layer: int) -> Iterator[list[torch.Tensor]]:
        """Record a layer's outputs: each forward pass appends one (B, L, d) to the yielded list."""
        outputs: list[torch.Tensor] = []
        handle = self.layers[layer].register_forward_hook(
            lambda _module, _given, output: outputs.append(
                output[0] if isinstance(output, tuple) else output
            )
        )
        try:
            yield outputs
        finally:
            handle.remove()

    def _run(self) -> torch.Tensor:
        output = call_model(self.model, self._probe)
        return output if isinstance(output, torch.Tensor) else logits_of(output)

    def check(self) -> None:
        """Check that the model's parts give the same result as the whole model.

        Forward passes that start at layer 0, 1, the middle and the last one must give the same
        logits, within a tolerance.

        Raises:
            ValueError: the logits differ, or the model cannot run in parts.
        """
        name = type(inner_model(self.model)).__name__

        with probing(self.model), torch.no_grad():
            whole = self._run()
            for layer in sorted({0, 1, len(self) // 2, len(self) - 1}):
                try:
                    hidden = self.hidden_at(layer, self._run)
                    with self.span(layer, len(self), hidden):
                        difference = relative_difference(self._run(), whole)
                except PROBE_ERRORS as error:
                    raise InputError(
                        "stackwise.model_cannot_run_from_layer",
                        model=name,
                        layer=layer,
                        error_type=type(error).__name__,
                        error=error,
                    ) from error
                if difference > tolerance(compute_dtype(self.model)):
                    raise InputError(
                        "stackwise.logits_differ_from_layer",
                        model=name,
                        layer=layer,
                        difference=difference,
                    )


def find_layers(
    model: torch.nn.Module, run: Callable[[], object]
) -> tuple[torch.nn.ModuleList, str]:
    """Return the outermost list of modules that pass on hidden states, and its name.

    Raises:
        ValueError: there is no such list, or there are several (an encoder and a decoder).
    """
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module)
    }
    calls: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}

    def note(
        module: torch.nn.Module,
        given: Sequence[object],
        named: Mapping[str, object],
        output: object,
    ) -> None:
        hidden = first_tensor(given, named)
        result = output[0] if isinstance(output, tuple) and output else output
        if isinstance(hidden, torch.Tensor) and isinstance(result, torch.Tensor):
            calls.setdefault(id(module), []).append((tuple(hidden.shape), tuple(result.shape)))

    members = {id(m): m for one in lists.values() for m in one}
    handles = [m.register_forward_hook(note, with_kwargs=True) for m in members.values()]
    try:
        with probing(model), torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()

    def hands_on(one: torch.nn.ModuleList) -> bool:
        each = [calls.get(id(layer), []) for layer in one]
        shapes = {shape for call in each for pair in call for shape in pair}
        return all(len(call) == 1 for call in each) and len(shapes) == 1

    fitting = {name: one for name, one in lists.items() if hands_on(one)}
    outermost = {
        name: one
        for name, one in fitting.items()
        if not any(name.startswith(f"{other}.") for other in fitting if other != name)
    }
    if len(outermost) != 1:
        kind = type(inner_model(model)).__name__
        raise InputError(
            "stackwise.layers_not_identified",
            model=kind,
            reason=phrase("stackwise.several_layer_lists", names=", ".join(outermost))
            if outermost
            else phrase("stackwise.no_layer_list"),
        )
    [(path, layers)] = outermost.items()
    return layers, path


def first_tensor(given: Sequence[object], named: Mapping[str, object]) -> Any:
    """Return the hidden states among a layer's positional and keyword arguments."""
    if given:
        return given[0]
    return named.get("hidden_states", next(iter(named.values()), None))


def _with_first(
    given: tuple[object, ...], named: dict[str, object], start: torch.Tensor
) -> tuple[tuple[object, ...], dict[str, object]]:
    if given:
        return (start, *given[1:]), named
    key = "hidden_states" if "hidden_states" in named else next(iter(named))
    return (), {**named, key: start}
