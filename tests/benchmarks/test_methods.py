"""The long forms of the benchmark of methods, in short: kills change nothing, and one method."""

from pathlib import Path

from benchmarks import methods
from infrastructure.config.registries import METHODS
from tests.slow import slow


@slow
def test_three_kills_of_each_method_change_no_bit() -> None:
    outcome = methods.kills(3)
    assert set(outcome) == set(METHODS.built_in)
    for name, one in outcome.items():
        assert isinstance(one, dict)
        assert (name, one["temper"]) == (name, True)
        assert one["kills"] >= 3


@slow
def test_each_method_beats_its_start_on_a_seed(tmp_path: Path) -> None:
    shares = methods.one_seed(0, tmp_path)
    assert 0.1 < shares["start"] < 0.7
    for name in ("dpo", "kto", "grpo", "distillation"):
        assert shares[name] > shares["start"] + 0.1, name
