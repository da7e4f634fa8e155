"""The form of a configuration: every setting, checked while it is typed, and the cost of a run.

The form does not wait for input: `form.config` is available at once, so "Run all" does not stop.
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
from infrastructure.data.preparation.doubts import UnconfirmedDataError, check_meant

# A form's forecast covers the training; how long its model takes to answer is not known before.
ON_TOP = "notebook.answers_come_on_top"
NOT_MEASURED = "notebook.cost_measured_later"


class ConfigForm:
    """The form of a configuration, which may be shown as widgets or as text.

    Attributes:
        view: the widgets of the form, or None if there is no notebook to show them.
    """

    def __init__(self, config: DeploymentConfig) -> None:
        self._state = FormState(config)
        self._known = KnownCosts()
        self._measured: tuple[dict[str, object], list[str]] = ({}, [])
        self._is_failed = False  # whether the newest measurement is
        self.view: FormView | None = None

    @property
    def config(self) -> DeploymentConfig:
        """The configuration with the current values of the form.

        Raises:
            ConfigurationError: if a value is wrong; the message has a sentence for each problem.
        """
        return self._state.checked()

    def update(self, **settings: object) -> None:
        """Set values from Python, named as in `configure`, which includes `preset`.

        Raises:
            ConfigurationError: if a value is wrong, or values contradict each other. Then nothing
                is changed.
        """
        self._state.update(settings)
        self._changed()

    def undo(self) -> None:
        """Undo all changes: reset the form to the values of the cell."""
        self._state.reset()
        self._changed()

    def measure(self) -> list[str]:
        """Measure a few steps of a run with these settings, without training it.

        Returns:
            The forecast as lines of text, or the reason why there is none. The form also
            shows these lines.
        """
        self._report(phrase("notebook.measuring_steps"))
        self._measured = (_what_costs(self._state.config), self._forecast())
        self._draw()
        return self._measured[1]

    def lines(self) -> list[str]:
        """Return the form as text, for use without a notebook: changes, problems, and cost."""
        config = self._state.config
        given = [
            f"{key} = {format_value(config.value(key))}   ({source.place})"
            for key, source in config.sources().items()
            if source.layer is not Layer.DEFAULT
        ]
        return [redact(line) for line in [*given, *self._state.problems(), *self._cost()]]

    def make_view(self) -> FormView:
        """Return the form's widgets, which are created on first use."""
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
            is_current = self._measured[0] == _what_costs(self._state.config)
            is_refuted = self._is_failed and is_current
            self.view.draw(self._state, self._cost(), is_refuted)

    def _report(self, line: str) -> None:
        if self.view is not None:
            self.view.draw_cost([line])

    def _forecast(self) -> list[str]:
        self._is_failed = False
        try:
            return [*colab.forecast(self.config).lines(), phrase(ON_TOP)]
        except Exception as error:  # from any library: it is only reported
            self._is_failed = True
            return [redact(phrase("notebook.measurement_failed", error=error))]

    def _doubt(self) -> list[str]:
        """Return the question that `temper train` would ask about the data, or an empty list."""
        try:
            check_meant(self._state.config.data)
        except UnconfirmedDataError as error:
            return [str(error)]
        return []

    def _cost(self) -> list[str]:
        """Return the known costs, and the measured ones if these settings were measured."""
        lines = [*self._doubt(), *self._known.lines(self._state.config)]
        settings, measured = self._measured
        is_measured = settings == _what_costs(self._state.config)
        return [*lines, *(measured if is_measured else [phrase(NOT_MEASURED)])]


class Edits:
    """The user's latest changes in a form, which a second "Run all" applies again.

    A change no longer applies if the cell has since set the same setting to another value.
    """

    def __init__(self) -> None:
        self._preset: str | None = None
        self._values: dict[str, object] = {}
        self._base_values: dict[str, object] = {}

    def keep(self, state: FormState) -> None:
        """Store the user's changes in a form."""
        self._preset, self._values = state.preset, dict(state.edits)
        keys = [*state.edits, *_keys_of(state.preset)]
        self._base_values = {key: state.base.value(key) for key in keys}

    def of(self, config: DeploymentConfig) -> dict[str, object]:
        """Return the stored changes that still apply to the configuration of a cell."""
        held = {
            key for key, base_value in self._base_values.items() if config.value(key) == base_value
        }
        changes = {key: value for key, value in self._values.items() if key in held}
        if self._preset is not None and held.issuperset(_keys_of(self._preset)):
            changes[PRESET] = self._preset
        return changes


_EDITS = Edits()


def show_form(config: DeploymentConfig) -> ConfigForm:
    """Show the form of a configuration below the cell, without waiting for input.

    The user's earlier changes in the form are applied again, unless the cell now gives another
    value. Without a notebook, or without ipywidgets, the form is printed as text.
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
    """Return a text on whether a secret was found, and where, but never the secret itself."""
    where = MISSING if secret.place == MISSING else f"found ({secret.place})"
    return f"{secret.name}: {where}"


def _keys_of(preset: str | None) -> list[str]:
    return [] if preset not in PRESETS else list(PRESETS[preset].settings)


# Settings that no forecast depends on.
_FREE = ("run_name", "new_run", "log_level", "monitor.")


def _what_costs(config: DeploymentConfig) -> dict[str, object]:
    keys = config.present_keys()
    return {key: config.value(key) for key in keys if not key.startswith(_FREE)}
