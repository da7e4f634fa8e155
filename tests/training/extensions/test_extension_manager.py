"""Extensions are made by name; an unknown one is refused when a run starts."""

from collections.abc import Iterator

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.extensions.extension_hooks import Extension, Observer
from infrastructure.training.extensions.extension_manager import (
    EXTENSIONS,
    create_extensions,
    register_extension,
)


class Nudge(Extension):
    """Does nothing, under a name."""

    def __init__(self, trainer: object) -> None:
        self.trainer = trainer


class Watch(Observer):
    """Does nothing, and looks on."""

    def __init__(self, trainer: object) -> None: ...


@pytest.fixture
def registered() -> Iterator[None]:
    register_extension("nudge", Nudge)
    yield
    EXTENSIONS.unregister("nudge")


@pytest.mark.usefixtures("registered")
def test_a_registered_extension_is_made_and_may_be_enabled() -> None:
    (made,) = create_extensions(["nudge"], "the trainer", {})
    assert (type(made), made.trainer) == (Nudge, "the trainer")  # type: ignore[attr-defined]
    (own,) = create_extensions(["quantum"], "the trainer", {"quantum": Nudge})
    assert type(own) is Nudge
    config = DeploymentConfig(training=TrainingConfig(enabled_extensions=["nudge"]))
    config.check_supported()


@pytest.mark.usefixtures("registered")
def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match="registered already"):
        register_extension("nudge", Watch)


def test_an_observer_may_be_enabled_too_and_no_other_class() -> None:
    with EXTENSIONS.registered("watch", Watch):
        (made,) = create_extensions(["watch"], "the trainer", {})
    assert isinstance(made, Observer)
    with pytest.raises(ValueError, match=r"'list'.*it lacks after_backward, after_loss"):
        register_extension("list", list)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["memory", "multimodal", "quantum"])
def test_ones_own_goes_before_a_name_that_is_taken_or_kept(name: str) -> None:
    config = DeploymentConfig(training=TrainingConfig(enabled_extensions=[name]))
    with EXTENSIONS.registered(name, Nudge):
        (made,) = create_extensions([name], None, {"quantum": Watch})
        assert type(made) is Nudge
        config.check_supported()


@pytest.mark.usefixtures("registered")
def test_an_unknown_extension_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'nudge'"):
        create_extensions(["nudeg"], None, {"quantum": Nudge})
