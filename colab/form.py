"""The form of a configuration: every setting, checked while it is typed, and what it will cost.

Nobody has to touch it: `form.config` is there at once, so "Run all" never waits.
"""

import colab
from colab.cost_line import KnownCosts
from colab.form_state import FormState
from colab.form_view import FormActions, FormView
from colab.secrets import MISSING, SecretLookup, bring_secrets
from infrastructure.config.base import ConfigurationError
from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.field_help import format_value
from infrastructure.config.merging.precedence import Layer
from infrastructure.config.merging.presets import PRESET, PRESETS
from infrastructure.core.messages import phrase
from infrastructure.core.notebook import in_notebook_kernel
from infrastructure.core.optional import is_installed, require
from infrastructure.core.redact import redact
from infrastructure.training.data.preparation.doubts import UnconfirmedDataError, check_meant

# A forecast for a form is of the training; how long its model takes to answer, nobody knows before.
ON_TOP = "Answering held-out prompts, before and after the training, comes on top."
NOT_MEASURED = "How long that takes, and how much memory, is measured before the first step."


class ConfigForm:
    """A form, shown or not.

    Attributes:
        view: its widgets; None where there is nobody to show them to.
    """

    def __init__(self, config: DeploymentConfig) -> None:
        self._state = FormState(config)
        self._known = KnownCosts()
        self._measured: tuple[dict[str, object], list[str]] | None = None
        self.view: FormView | None = None

    @property
    def config(self) -> DeploymentConfig:
        """The configuration as the form stands.

        Raises:
            ConfigurationError: a sentence for each thing that is wrong, so that no run starts.
        """
        return self._state.checked()

    def update(self, **settings: object) -> None:
        """Set values from Python, as for `configure`, `preset` among them; all or none.

        Raises:
            ConfigurationError: one is wrong, or they do not go together.
        """
        self._state.update(settings)
        self._changed()

    def undo(self) -> None:
        """Back to what the cell says."""
        self._state.reset()
        self._changed()

    def measure(self) -> list[str]:
        """Try a few steps of a run with these settings, without training anything.

        Returns:
            The forecast, or why there is none, in sentences; shown in the form too.
        """
        self._report(phrase("notebook.measuring_steps"))
        self._measured = (_what_costs(self._state.config), self._forecast())
        self._draw()
        return self._measured[1]

    def lines(self) -> list[str]:
        """The form for people without a notebook: what was set, what is wrong, what it takes."""
        config = self._state.config
        given = [
            f"{key} = {format_value(config.value(key))}   ({source.place})"
            for key, source in config.sources().items()
            if source.layer is not Layer.DEFAULT
        ]
        return [redact(line) for line in [*given, *self._state.problems(), *self._cost()]]

    def make_view(self) -> FormView:
        """Its widgets, made when they are asked for first."""
        if self.view is None:
            actions = FormActions(self._entered, self._chosen, self.undo, self.measure)
            self.view = FormView(actions, [_describe(secret) for secret in bring_secrets()])
            self._draw()
        return self.view

    def _entered(self, key: str, text: str) -> None:
        self._state.enter(key, text)
        self._changed()

    def _chosen(self, preset: str | None) -> None:
        self._state.choose(preset)
        self._changed()

    def _changed(self) -> None:
        _EDITS.keep(self._state)
        self._draw()

    def _draw(self) -> None:
        if self.view is not None:
            self.view.draw(self._state, self._cost())

    def _report(self, line: str) -> None:
        if self.view is not None:
            self.view.draw_cost([line])

    def _forecast(self) -> list[str]:
        try:
            return [*colab.forecast(self.config).lines(), ON_TOP]
        except Exception as error:  # of whatever library: it is only told
            return [redact(phrase("notebook.measurement_failed", error=error))]

    def _doubt(self) -> list[str]:
        """What would be a question at a terminal: here a box of the form answers it."""
        try:
            check_meant(self._state.config.data)
        except UnconfirmedDataError as error:
            return [str(error)]
        return []

    def _cost(self) -> list[str]:
        """What is known at once; then what was measured, if that was of these settings."""
        lines = [*self._doubt(), *self._known.lines(self._state.config)]
        if self._measured is None:
            return [*lines, NOT_MEASURED]
        settings, measured = self._measured
        now = _what_costs(self._state.config)
        others = [key for key in now | settings if now.get(key) != settings.get(key)]
        if not others:
            return [*lines, *measured]
        was = ", ".join(f"{key} {format_value(settings.get(key))}" for key in others)
        return [*lines, f"Measured with {was}: {' '.join(measured)}"]


class Edits:
    """What was last changed in a form of this kernel, so that a second "Run all" does not undo it.

    An edit holds as long as the cell says of its setting what it said when the edit was made.
    """

    def __init__(self) -> None:
        self._preset: str | None = None
        self._values: dict[str, object] = {}
        self._base_values: dict[str, object] = {}

    def keep(self, state: FormState) -> None:
        """Remember what the form says now."""
        self._preset, self._values = state.preset, dict(state.edits)
        keys = [*state.edits, *_keys_of(state.preset)]
        self._base_values = {key: state.base.value(key) for key in keys}

    def of(self, config: DeploymentConfig) -> dict[str, object]:
        """The changes that hold on a configuration as well."""
        held = {
            key for key, base_value in self._base_values.items() if config.value(key) == base_value
        }
        changes = {key: value for key, value in self._values.items() if key in held}
        if self._preset is not None and held.issuperset(_keys_of(self._preset)):
            changes[PRESET] = self._preset
        return changes


_EDITS = Edits()


def show_form(config: DeploymentConfig) -> ConfigForm:
    """Show the form of a configuration below the cell, and wait for nobody.

    What was changed in the form before, in this kernel, is changed again, as long as the cell says
    the same. Without a notebook, or without ipywidgets, what the form would say is printed.
    """
    form = ConfigForm(config)
    try:
        form.update(**_EDITS.of(config))
    except ConfigurationError as error:
        print(redact(phrase("notebook.form_changes_outdated", error=error)))
    if in_notebook_kernel() and is_installed("ipywidgets"):
        display = require("IPython.display", "a form")
        display.display(form.make_view().box)
    else:
        print("\n".join(form.lines()))
    return form


def _describe(secret: SecretLookup) -> str:
    """Whether there is a secret, and where; never the secret."""
    where = MISSING if secret.place == MISSING else f"found ({secret.place})"
    return f"{secret.name}: {where}"


def _keys_of(preset: str | None) -> list[str]:
    return [] if preset not in PRESETS else list(PRESETS[preset].settings)


# What no forecast depends on.
_FREE = ("run_name", "new_run", "log_level", "monitor.")


def _what_costs(config: DeploymentConfig) -> dict[str, object]:
    keys = config.present_keys()
    return {key: config.value(key) for key in keys if not key.startswith(_FREE)}
