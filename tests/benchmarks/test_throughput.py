"""The ruler of speed: what it counts, that it compares equals, and two steps of everything."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.throughput import __main__ as command
from benchmarks.throughput import comparison
from benchmarks.throughput.comparison import differences, is_right, measure, summarise
from benchmarks.throughput.page import update
from benchmarks.throughput.products import Layer, StepProducts, layers_of, step_products
from benchmarks.throughput.workbench import (
    SCENARIOS,
    Scenario,
    Workbench,
    prepare,
)
from benchmarks.turns import End, Turns
from tests.slow import slow

SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32}
SMALL = {**SHAPE, "num_key_value_heads": 2, "intermediate_size": 128}
NUM_STEPS = 3


def write_rows(path: Path) -> Path:
    rows = [
        {
            "question": f"Ann has {n} eggs. She buys {n % 7} more. How many eggs has Ann now?",
            "answer": f"She has {n} + {n % 7} of them.\n#### {n + n % 7}",
        }
        for n in range(60)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def workbench_of(name: str, tmp_path: Path) -> Workbench:
    """A scenario with a small model, and few examples a step."""
    was = SCENARIOS[name]
    small = Scenario(**{**vars(was), "shape": SMALL, "batch_size": 3, "joined": min(was.joined, 3)})
    return prepare(small, write_rows(tmp_path / "rows.jsonl"), NUM_STEPS, tmp_path / name)


def test_products_are_those_of_what_trains(tmp_path: Path) -> None:
    """LoRA: no gradient of a frozen weight; the first layers are given what needs none."""
    workbench = workbench_of("lora", tmp_path)
    model = workbench.create_model(torch.float32)
    layers = layers_of(model, tokens=100, learnt=40)
    small = [layer for layer in layers if 8 in (layer.inputs, layer.outputs)]
    frozen = [layer for layer in layers if layer not in small]
    assert all(layer.has_weight_gradient for layer in small)
    assert not any(layer.has_weight_gradient for layer in frozen)
    assert sum(not layer.has_input_gradient for layer in frozen) == 3  # first q, k and v
    assert [layer.rows for layer in layers if layer.outputs == 8192] == [40]
    assert Layer(10, 4, 5, True, False).flops == 2 * 2 * 10 * 4 * 5


def test_full_training_takes_three_products_a_layer(tmp_path: Path) -> None:
    workbench = workbench_of("answers", tmp_path)
    products = step_products(workbench, NUM_STEPS)
    assert {layer.num_products for layer in products.layers} == {3}
    head = products.layers[-1]
    assert 0 < head.rows < products.num_tokens


def turns_of(speeds: list[float]) -> Turns:
    return Turns(speeds=speeds, end=End(None, None, peak_bytes=1 << 30))


def test_figures_are_ratios_of_neighbouring_steps_after_the_warmup() -> None:
    turns = {
        "temper": turns_of([1.0, 200.0, 100.0]),  # the machine became half as fast for all of them
        "other": turns_of([9.0, 100.0, 50.0]),
        "products_fp32": turns_of([9.0, 500.0, 250.0]),
        "products_bf16": turns_of([9.0, 400.0, 200.0]),
    }
    measured = summarise(turns, {"temper": "bf16", "other": "fp32"}, num_warmup=1)
    assert measured["systems"]["temper"]["share_of_products"] == [0.5, 0.5, 0.5]
    assert measured["systems"]["other"] == {
        "precision": "fp32",
        "tokens_per_second": 75,
        "share_of_products": [0.2, 0.2, 0.2],
        "peak_bytes": 1 << 30,
        "temper_times": [2.0, 2.0, 2.0],
    }
    assert measured["tokens_per_second_of_products"] == {"fp32": 375, "bf16": 300}


def test_the_ruler_does_every_product() -> None:
    products = StepProducts(10, (Layer(10, 4, 5, True, True), Layer(10, 4, 5, True, False)))
    made = list(products._products(torch.float32))
    assert len(made) == 5
    for left, right, output in made:
        assert (left.shape[0], right.shape[1]) == tuple(output.shape)
        assert left.shape[1] == right.shape[0]


@pytest.mark.parametrize("name", ["all", "4bit-lora"])
def test_loss_and_gradients_are_the_plain_loop_s(name: str, tmp_path: Path) -> None:
    assert is_right(differences(workbench_of(name, tmp_path)))


def test_another_gradient_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it, at the same loss."""
    loss = comparison.TokenLoss

    class Scaled(loss):  # type: ignore[valid-type, misc]
        def __call__(self, *args: object) -> tuple[torch.Tensor, int]:
            loss_sum, count = super().__call__(*args)
            return loss_sum.detach() + 0.5 * (loss_sum - loss_sum.detach()), count

    monkeypatch.setattr(comparison, "TokenLoss", Scaled)
    measured = differences(workbench_of("answers", tmp_path))
    assert not is_right(measured)
    assert measured["fp32"]["loss"] < 1e-6
    assert measured["fp32"]["gradients"] == pytest.approx(0.5, abs=0.01)


@slow
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_two_steps_of_all_systems_make_a_page(name: str, tmp_path: Path) -> None:
    command.be_quiet()
    measured = measure(workbench_of(name, tmp_path), 1, NUM_STEPS - 1)
    speeds = [system["tokens_per_second"] for system in measured["systems"].values()]
    assert min(speeds) > 0
    measured |= {"difference": {}, "environment": command.environment()}
    update(tmp_path, {name: measured})
    page = (tmp_path / "throughput.md").read_text()
    assert f"| Temper | {measured['systems']['temper']['precision']} |" in page
