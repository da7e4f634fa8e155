"""The time of each stage of a run."""

import pytest

from infrastructure.core.messages import phrase
from infrastructure.run.timings import STAGES, Stages


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_stage_has_its_time_and_twice_adds_up() -> None:
    clock = Clock()
    stages = Stages(clock)
    for name, seconds in (("model", 2.0), ("data", 1.0), ("model", 0.5)):
        with stages.stage(name):
            clock.now += seconds
    assert [(one["name"], one["seconds"]) for one in stages.records()] == [
        ("model", 2.5),
        ("data", 1.0),
    ]
    assert stages.records()[0]["what"] == phrase(STAGES["model"])


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_a_stage_that_fails_has_its_time_too(kind: type[BaseException]) -> None:
    clock = Clock()
    stages = Stages(clock)

    def save() -> None:
        with stages.stage("save"):
            clock.now += 3.0
            raise kind("full")

    with pytest.raises(kind, match="full"):
        save()
    assert stages.records() == [
        {"name": "save", "what": phrase(STAGES["save"]), "seconds": 3.0, "error": kind.__name__}
    ]


def test_a_misspelt_stage_is_refused() -> None:
    with pytest.raises(KeyError), Stages().stage("trian"):
        pass


def test_each_stage_is_called_by_its_own_words() -> None:
    assert len({*STAGES.values()}) == len(STAGES)
    for name, code in STAGES.items():
        assert name[:3] in code.removeprefix("run.stage_")


def test_the_seconds_of_all_stages_add_up() -> None:
    clock = Clock()
    stages = Stages(clock)
    for name in ("data", "train", "data"):
        with stages.stage(name):
            clock.now += 2.03125
    assert [stages.seconds(name) for name in ("data", "train", "save")] == [4.0625, 2.03125, None]
    assert stages.total_seconds() == 6.09375
    assert [record["seconds"] for record in stages.records()] == [4.062, 2.031]
