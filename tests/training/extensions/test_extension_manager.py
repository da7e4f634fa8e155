"""Extensions are made by name; an unknown one is refused when a run starts."""

from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.sections.training_config import TrainingConfig
from infrastructure.training.extensions.extension_hooks import Extension, Observer
from infrastructure.training.extensions.extension_manager import (
    EXTENSIONS,
    ExtensionManager,
    create_extensions,
    own_extensions,
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
def test_extensions_that_the_trainer_does_not_provide_are_looked_up() -> None:
    with EXTENSIONS.registered("quantum", Watch):
        names = ["nudge", "mine", "quantum"]
        assert own_extensions(names, ["mine", "quantum"]) == [Nudge, Watch]
    assert own_extensions(["nudge"], ["nudge", "other"]) == [Nudge]  # one's own goes before
    assert own_extensions([]) == []


@pytest.mark.usefixtures("registered")
def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match=r"core\.plugin_name_taken"):
        register_extension("nudge", Watch)


def test_an_observer_may_be_enabled_too_and_no_other_class() -> None:
    with EXTENSIONS.registered("watch", Watch):
        (made,) = create_extensions(["watch"], "the trainer", {})
    assert isinstance(made, Observer)
    with pytest.raises(
        ValueError, match=r"core\.plugin_incomplete.*missing=after_backward, after_loss"
    ):
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
    with pytest.raises(ValueError, match=r"core\.did_you_mean\(meant=nudge\)"):
        create_extensions(["nudeg"], None, {"quantum": Nudge})


class Adding(Extension):
    """Adds a weight, drawn at random, and takes it away again."""

    adds_weights = True
    calls: ClassVar[list[str]] = []

    def __init__(self, label: str) -> None:
        self.label, self.drawn = label, 0.0

    @property
    def name(self) -> str:
        return self.label

    def attach(self, model: torch.nn.Module) -> None:
        self.drawn = float(torch.rand(()))
        self.calls.append(f"attach {self.label}")

    def detach(self, model: torch.nn.Module) -> None:
        self.calls.append(f"detach {self.label}")


def test_weights_are_added_in_order_by_the_seed_and_taken_away_in_reverse() -> None:
    extensions = [Adding("one"), Nudge(None), Adding("two")]
    manager = ExtensionManager([Watch(None), *extensions])
    model, before = torch.nn.Linear(1, 1), torch.get_rng_state()
    Adding.calls.clear()
    manager.attach(model, TrainingConfig(seed=7))
    manager.detach(model)
    assert Adding.calls == ["attach one", "attach two", "detach two", "detach one"]
    assert torch.equal(torch.get_rng_state(), before)
    assert manager.extensions == extensions
    assert manager.adding_weights == ["one", "two"]
    drawn = extensions[0].drawn
    manager.attach(model, TrainingConfig(seed=7))
    assert extensions[0].drawn == drawn
    manager.attach(model, TrainingConfig(seed=8))
    assert extensions[0].drawn != drawn


class Needy(Nudge):
    """Needs another one, which is made after it by the order of the names."""

    requires = ("nudge",)


class Later(Nudge):
    """Comes after another one where that is enabled."""

    after = ("needy",)


class Knot(Nudge):
    """Comes after one that comes after it."""

    after = ("later",)
    requires = ("tied",)


class Tied(Nudge):
    after = ("knot",)


@pytest.fixture
def related(registered: None) -> Iterator[None]:
    """Extensions that say which others come before them."""
    with (
        EXTENSIONS.registered("needy", Needy),
        EXTENSIONS.registered("later", Later),
        EXTENSIONS.registered("knot", Knot),
        EXTENSIONS.registered("tied", Tied),
    ):
        yield


@pytest.mark.usefixtures("related")
def test_each_comes_after_those_that_it_names() -> None:
    made = create_extensions(["later", "needy", "nudge"], None, {})
    assert [type(one) for one in made] == [Nudge, Needy, Later]
    made = create_extensions(["later", "nudge"], None, {})
    assert [type(one) for one in made] == [Later, Nudge]  # as they are given


@pytest.mark.usefixtures("related")
def test_what_is_missing_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"training\.required_extension_missing.*name=needy.*missing=nudge"
    ):
        create_extensions(["needy"], None, {})


@pytest.mark.usefixtures("related")
def test_a_circle_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"training\.extension_order_circular.*names=knot and tied\)"
    ):
        create_extensions(["nudge", "knot", "tied"], None, {})
