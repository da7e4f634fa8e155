"""Two ranks come to what one comes to, and get over the same errors; real ranks, gloo on the CPU.

One pair of processes does all the quick cases, one after another.
"""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.registries import EXTENSIONS, STRATEGIES
from infrastructure.core.exit_codes import ExitCode
from infrastructure.training.core.metric_accumulator import MetricAccumulator
from infrastructure.training.distributed import replicate
from infrastructure.training.distributed.group import ALONE
from infrastructure.training.distributed.replicate import (
    checksum,
    fingerprint,
    share_seed,
    shares_of,
    sum_gradients,
)
from tests.slow import slow
from tests.training.distributed.trainings import DROPOUT, LORA, Case, results

QUANTUM: dict[str, Any] = {
    "training.enabled_extensions": ["quantum"],
    "training.optimization_frequency": 3,
    "quantum.problem": "block_selection",
    "quantum.num_blocks": 1,
    "quantum.max_overhead_percent": 1e6,
}
SAVES: dict[str, Any] = {"training.checkpoint_frequency": 1, "training.keep_checkpoints": 9}
SHORT: dict[str, Any] = {"training.max_steps": 6}
STACKS: dict[str, Any] = {
    "training.strategy": "progressive",
    "training.progressive": {"target_stacks": 2},
    "training.num_epochs": 1,
    "training.max_steps": None,
    **SAVES,
}
# What one and two ranks are compared by: name, settings, model.
QUICK = [
    ("full", {"data.packing": True, "training.gradient_accumulation": 3}, "tied"),
    (
        "lora, quantum",
        {**LORA, **QUANTUM, "data.packing": False, "data.validation_split": 0.2},
        "model",
    ),
    ("stack-wise", STACKS, "model"),
]
SLOW_STRATEGIES = [
    (
        "stages by loss",
        {
            "training.strategy": "curriculum",
            "training.curriculum_by": "loss",
            "training.curriculum_stages": 2,
            "training.num_epochs": 2,
            "training.max_steps": None,
        },
        "model",
    ),
    ("end to end", {**STACKS, "training.strategy": "end_to_end"}, "model"),
    ("finetune", {**LORA, "training.strategy": "finetune", "data.packing": True}, "model"),
]
ALL_OF_THEM = [
    (
        f"{kind} {model} {'packed' if packing else 'padded'} {accumulation} {quantum}",
        {
            **(LORA if kind == "lora" else {}),
            **(QUANTUM if quantum else {}),
            "data.packing": packing,
            "training.gradient_accumulation": accumulation,
            "training.max_steps": 12,
        },
        model,
    )
    for kind in ("full", "lora")
    for model in ("model", "tied")
    for packing in (True, False)
    for accumulation in (3, 4)
    for quantum in (False, True)
]


def pairs_of(cases: list[tuple[str, dict[str, Any], str]]) -> list[Case]:
    return [
        Case(f"{name} {size}", {**SHORT, **settings}, size, model=model)
        for name, settings, model in cases
        for size in (1, 2)
    ]


ERRORS = [
    Case("no memory", SHORT, planted={1: "no memory for two"}),
    Case("torn", {**SHORT, **SAVES}, planted={1: "no memory in the update"}),
    Case("bad loss", {**SHORT, **SAVES}, planted={1: "a loss that is none"}),
    Case("stopped", {**SHORT, **SAVES}, planted={1: "SIGTERM"}),
    Case(
        "other weights", {**SHORT, "training.checkpoint_frequency": 3}, planted={1: "other weights"}
    ),
    Case("failed", {**SHORT, **SAVES}, planted={1: "an error"}),
]
LIMIT_SECONDS = 6.0
NUM_PAIRS = 8


def hung(rank: int, number: int) -> Case:
    settings = {**SAVES, "training.max_steps": 2}
    name = f"rank {rank} hangs in {number}"
    return Case(name, settings, planted={rank: number}, limit_seconds=LIMIT_SECONDS)


# Rank 1 in the first exchange of gradients; rank 0 where it decides after the first step.
HUNG = [hung(1, 11), hung(0, 14)]
RESUMED = [
    Case("whole", {**SHORT, **SAVES, **DROPOUT}),
    Case("again", {**SHORT, **SAVES, **DROPOUT}, goes_on_from=("whole", 3)),
    Case("one", {**SHORT, **SAVES}, 1),
    Case("one then two", {**SHORT, **SAVES}, 2, goes_on_from=("one", 3)),
    Case("two", {**SHORT, **SAVES}, 2),
    Case("two then one", {**SHORT, **SAVES}, 1, goes_on_from=("two", 3)),
    Case("second stack again", {**SHORT, **STACKS}, 2, goes_on_from=("stack-wise 2", 7)),
]


def folder_of(tmp: Path, model: Path) -> Path:
    """A folder with a model, and one whose head is its embedding."""
    shutil.copytree(model, tmp / "model")
    shutil.copytree(model, tmp / "tied")
    config = tmp / "tied/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": True}))
    weights = load_file(tmp / "tied/model.safetensors")
    del weights["lm_head.weight"]  # with a value of its own it is not tied
    save_file(weights, tmp / "tied/model.safetensors", {"format": "pt"})
    return tmp


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, saved_llama: Path) -> dict[str, dict[str, Any]]:
    folder = folder_of(tmp_path_factory.mktemp("ranks"), saved_llama)
    return results(folder, [*pairs_of(QUICK), *ERRORS, *HUNG, *RESUMED])


def check_same(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one["error"] is None, one["stderr"]
    assert two["error"] is None, two["stderr"]
    assert len(one["losses"]) >= 4
    assert two["rows"] == one["rows"]  # the same batches, in this order
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert two["norms"] == pytest.approx(one["norms"], rel=1e-3)
    assert two["weights"] == pytest.approx(one["weights"], abs=1e-4)


@pytest.mark.parametrize("name", [name for name, _, _ in QUICK])
def test_two_ranks_learn_what_one_learns(name: str, found: dict[str, dict[str, Any]]) -> None:
    check_same(found[f"{name} 1"], found[f"{name} 2"])


@slow
def test_two_ranks_learn_what_one_learns_in_every_kind(tmp_path: Path, saved_llama: Path) -> None:
    """32 pairs of trainings."""
    kinds = [*SLOW_STRATEGIES, *ALL_OF_THEM]
    found = results(folder_of(tmp_path, saved_llama), pairs_of(kinds))
    for name, _, _ in kinds:
        check_same(found[f"{name} 1"], found[f"{name} 2"])


def test_every_strategy_and_extension_is_compared_with_one_process_or_refused() -> None:
    compared = [settings for _, settings, _ in [*QUICK, *SLOW_STRATEGIES]]
    strategies = {settings.get("training.strategy", "standard") for settings in compared}
    assert strategies == set(STRATEGIES.built_in)
    extensions = {e for s in compared for e in s.get("training.enabled_extensions", ())}
    extensions.add("multimodal")  # in test_ranks.py
    for name in set(EXTENSIONS.built_in) - extensions:
        if getattr(EXTENSIONS.get(name), "is_of_first_rank", False):
            continue  # it only looks at rank 0
        config = DeploymentConfig(
            num_processes=2, device="cpu", **{"training.enabled_extensions": [name]}
        )
        with pytest.raises(ConfigurationError, match=rf"_on_processes\(count=2, names={name}\)"):
            config.check_supported()


def test_a_rank_that_lacks_memory_makes_the_pieces_of_all_smaller(
    found: dict[str, dict[str, Any]],
) -> None:
    case = found["no memory"]
    assert case["error"] is None
    assert case["recoveries"] == [
        [
            "out_of_memory",
            "training.batch_retried_smaller(micro_batch_size=1)",
            "CUDA out of memory: planted",
        ]
    ]
    assert case["micro_batch_size"] == 1
    assert case["losses"] == pytest.approx(found["two"]["losses"], abs=1e-5)


def test_a_step_that_is_torn_on_one_rank_is_gone_back_from_on_all(
    found: dict[str, dict[str, Any]],
) -> None:
    case = found["torn"]
    assert case["error"] is None
    ((kind, action, message),) = case["recoveries"]
    assert kind == "out_of_memory"
    assert action == "training.rolled_back_torn_step(step=2, micro_batch_size=1)"
    assert message == "CUDA out of memory: planted in the update"
    assert case["losses"] == pytest.approx(found["two"]["losses"], abs=1e-5)
    assert case["weights"] == pytest.approx(found["two"]["weights"], abs=1e-4)


def test_a_bad_loss_of_one_rank_rolls_all_back(found: dict[str, dict[str, Any]]) -> None:
    case = found["bad loss"]
    assert case["error"] is None
    assert case["recoveries"][0][0] == "not_finite"
    assert case["recoveries"][0][1].startswith("training.rolled_back_to_skip(start=2,")
    assert case["step"] == 6
    assert all(loss == loss for loss in case["losses"])


def test_a_signal_to_another_rank_stops_all_after_the_same_step(
    found: dict[str, dict[str, Any]],
) -> None:
    case = found["stopped"]
    assert case["error"] is None
    assert case["stop"] == ["signal", "ended from outside (SIGTERM)"]
    assert case["step"] == 3
    assert case["versions"][-1] == 3


def test_ranks_of_other_weights_are_found_before_they_are_saved(
    found: dict[str, dict[str, Any]],
) -> None:
    case = found["other weights"]
    assert case["error"].startswith(
        "ProcessLostError: training.weights_differ_between_ranks(step=3, rank=rank 1"
    )
    assert case["versions"] == [0]


def test_a_rank_that_fails_ends_the_training_after_it_is_saved(
    found: dict[str, dict[str, Any]],
) -> None:
    case = found["failed"]
    assert case["error"].startswith(
        "ProcessLostError: training.rank_failed(name=training.rank_of_size(rank=1, size=2),"
        " reason=ValueError: planted in a rank"
    )
    assert case["versions"][-1] == 2


def check_hung(case: Case, result: dict[str, Any]) -> None:
    """Who hangs is named, and what was committed is there: by rank 0, which has the versions; where
    that one hangs, the other ends."""
    (hanging,) = case.planted
    if hanging == 1:
        assert result["error"].startswith("ProcessLostError: "), (case, result["error"])
        assert "training.rank_of_size(rank=1, size=2)" in result["error"]
    else:
        assert result["codes"] == [ExitCode.PROCESS_LOST], (case, result["error"])
    assert result["seconds"] < 30 * LIMIT_SECONDS
    is_in_loop = next(iter(case.planted.values())) > 10  # type: ignore[operator]
    assert not is_in_loop or result["versions"][:1] == [0]


@pytest.mark.parametrize("case", HUNG, ids=[case.name for case in HUNG])
def test_a_rank_that_hangs_ends_the_training_in_time(
    case: Case, found: dict[str, dict[str, Any]]
) -> None:
    check_hung(case, found[case.name])


@slow
def test_a_rank_that_hangs_in_any_round_ends_the_training(
    tmp_path: Path, saved_llama: Path
) -> None:
    """Several pairs of ranks at once, since most of it is waiting."""
    whole = Case("whole", {**SAVES, "training.max_steps": 2})
    folder = folder_of(tmp_path, saved_llama)
    num_rounds = results(folder, [whole])["whole"]["rounds"]  # up to the end of the last step
    assert num_rounds > 15
    each = [hung(rank, number) for rank in (0, 1) for number in range(1, num_rounds + 1)]
    parts = [each[begin::NUM_PAIRS] for begin in range(NUM_PAIRS)]
    with ThreadPoolExecutor(NUM_PAIRS) as threads:
        for part, found in zip(parts, threads.map(partial(results, folder), parts), strict=True):
            for case in part:
                check_hung(case, found[case.name])


@slow
def test_four_ranks_and_one_go_on_with_each_others_versions(
    tmp_path: Path, saved_llama: Path
) -> None:
    cases = [
        Case("one", {**SHORT, **SAVES}, 1),
        Case("one then four", {**SHORT, **SAVES}, 4, goes_on_from=("one", 3)),
        Case("four then two", {**SHORT, **SAVES}, 2, goes_on_from=("one then four", 4)),
        Case("four then one", {**SHORT, **SAVES}, 1, goes_on_from=("one then four", 4)),
    ]
    found = results(folder_of(tmp_path, saved_llama), cases)
    one = found["one"]
    for case in cases[1:]:
        result = found[case.name]
        assert result["error"] is None, result["stderr"]
        begin = len(one["losses"]) - len(result["losses"])
        assert result["rows"] == one["rows"][begin:]
        assert result["losses"] == pytest.approx(one["losses"][begin:], abs=1e-5)


def test_as_many_ranks_go_on_bit_for_bit(found: dict[str, dict[str, Any]]) -> None:
    """With dropout, which each rank draws for itself."""
    whole, again = found["whole"], found["again"]
    assert again["error"] is None, again["stderr"]
    assert again["bits"] == whole["bits"]
    assert again["losses"] == whole["losses"][3:]
    assert again["rows"] == whole["rows"][3:]
    assert whole["bits"] != found["two"]["bits"]


def test_ranks_go_on_in_the_form_of_a_later_phase(found: dict[str, dict[str, Any]]) -> None:
    """Before the others get the weights, they build what rank 0 has built by then."""
    whole, again = found["stack-wise 2"], found["second stack again"]
    assert again["error"] is None, again["stderr"]
    assert again["losses"] == whole["losses"][7:]
    assert again["bits"] == whole["bits"]


@pytest.mark.parametrize("name", ["one then two", "two then one"])
def test_another_number_of_ranks_goes_on_with_the_same_batches(
    name: str, found: dict[str, dict[str, Any]]
) -> None:
    case, one = found[name], found["one"]
    assert case["error"] is None, case["stderr"]
    assert case["rows"] == one["rows"][3:]
    assert case["losses"] == pytest.approx(one["losses"][3:], abs=1e-5)
    assert case["weights"] == pytest.approx(one["weights"], abs=1e-4)


@pytest.mark.parametrize("num_examples", [0, 1, 2, 7, 8, 9])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_shares_are_the_whole_batch_in_order_and_almost_equal(num_examples: int, size: int) -> None:
    shares = shares_of(range(num_examples), size)
    assert [example for share in shares for example in share] == list(range(num_examples))
    lengths = [len(share) for share in shares]
    assert len(shares) == size
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)  # rank 0 is never idle


def test_each_share_draws_its_own_random_numbers_the_same_ones_each_time() -> None:
    seeds = {share_seed(seed, step, rank) for seed in (0, 1) for step in (0, 1) for rank in (1, 2)}
    assert len(seeds) == 8
    assert share_seed(3, 4, 1) == share_seed(3, 4, 1)
    assert all(0 <= seed < 1 << 32 for seed in seeds)


def layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))


def test_a_gradient_that_no_rank_has_is_none_again() -> None:
    model = layers()
    model[0].requires_grad_(False)
    model[1].weight.grad = torch.ones(1, 2)
    window = MetricAccumulator(loss_sum=torch.tensor(2.5), num_items=3)
    sum_gradients(ALONE, model, window)
    assert [p.grad is None for p in model.parameters()] == [True, True, False, True]
    assert (float(window.loss_sum), window.num_items) == (2.5, 3)


def test_a_gradient_of_one_rank_is_kept_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one rank's rows may use an expert."""
    here, there = layers(), layers()
    here[0].weight.grad, there[1].weight.grad = torch.ones(2, 2), torch.ones(1, 2)
    sent: list[list[torch.Tensor]] = []
    two = {"size": 2, "sum": lambda self, given: sent.append(given)}
    group = type("Two", (type(ALONE),), two)()
    for model in (here, there):
        sum_gradients(group, model, MetricAccumulator(loss_sum=torch.tensor(1.0), num_items=2))
    of_both = [a + b for a, b in zip(*([t.clone() for t in given] for given in sent), strict=True)]

    def sum_both(self: object, given: list[torch.Tensor]) -> None:
        for tensor, total in zip(given, of_both, strict=True):
            tensor.copy_(total)

    monkeypatch.setattr(type(group), "sum", sum_both)
    window = MetricAccumulator(loss_sum=torch.tensor(1.0), num_items=2)
    here.zero_grad()
    sum_gradients(group, here, window)
    found = [p.grad if p.grad is None else p.grad.tolist() for p in here.parameters()]
    assert found == [[[1.0, 1.0], [1.0, 1.0]], None, [[1.0, 1.0]], None]
    assert (float(window.loss_sum), window.num_items) == (2.0, 4)


def test_other_frozen_weights_or_shapes_have_another_fingerprint() -> None:
    one, same = layers(), layers()
    assert fingerprint(one) == fingerprint(same)
    assert checksum(one) == checksum(same)
    with torch.no_grad():  # all of a plain model changes while it trains
        same[0].weight.add_(1)
    assert fingerprint(one) == fingerprint(same)
    assert checksum(one) != checksum(same)
    wider = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    assert fingerprint(one) != fingerprint(wider)
    moved = layers()
    with torch.no_grad():
        first, second = moved[0].weight[0].clone(), moved[0].bias.clone()
        moved[0].weight[0], moved[0].bias[:] = second, first
    assert checksum(one) != checksum(moved)  # the same numbers, each in the place of the other
    assert fingerprint(one) != fingerprint(layers().double())
    assert checksum(torch.nn.Module()) == ""


def test_of_frozen_weights_the_values_count(monkeypatch: pytest.MonkeyPatch) -> None:
    prints = []
    for value in (0.0, 0.0, 1.0):
        model = layers()
        monkeypatch.setattr(replicate, "trainable_state", lambda m: dict(m[1].named_parameters()))
        with torch.no_grad():
            model[0].bias.fill_(value)
        prints.append(fingerprint(model))
    assert prints[0] == prints[1] != prints[2]
