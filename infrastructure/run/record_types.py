"""The contents of run.json and summary.json, key by key.

Files of older releases and of killed runs lack some keys. Keys that some files lack are declared as
not required. Loads no torch.
"""

from typing import NotRequired, Required, TypedDict

from infrastructure.core.json_text import JsonObject, JsonValue


class SettingRecord(TypedDict):
    """The value of a setting, with its source."""

    value: JsonValue
    source: str


class Continuation(TypedDict):
    """The record of one resume of a run.

    Attributes:
        step: the step of the checkpoint.
        was_killed: whether the run had been killed instead of stopped normally.
        place: the destination from which the run was restored; missing if it was not restored.
    """

    step: int
    was_killed: bool
    place: NotRequired[str]


class BroughtBack(TypedDict):
    """The record of a run that was restored from a destination and has not resumed since.

    Attributes:
        place: the destination, without a password.
        was_killed: whether the run had been killed instead of stopped normally, as far as its
            checkpoint shows.
    """

    place: str
    was_killed: bool


class BaseRunRecord(TypedDict, total=False):
    """The contents of run.json that are the same for all training loops.

    Attributes:
        created: the local time of creation with its UTC offset, as ISO 8601.
        command: the command line, without secrets.
        hardware: the facts about the machine, with `device` and `processes` of the run.
        went_on: the record of each resume, as in summary.json. run.json is part of every backup.
        brought_back: the restore of the run; present until the run resumes.
        history: the changes during training, oldest first; see `run.history`.
    """

    run_id: str
    created: str
    command: str
    config: dict[str, SettingRecord]
    versions: dict[str, str]
    hardware: dict[str, object]
    went_on: list[Continuation]
    brought_back: BroughtBack
    history: list[JsonObject]


class DecidedSetting(TypedDict):
    """The value that Temper chose for a setting that the configuration left open."""

    value: int | str
    origin: str


class RunRecord(BaseRunRecord, total=False):
    """The contents of run.json for a run of Temper's own training loop.

    Attributes:
        configuration: the configuration, as `DeploymentConfig.from_dict` reads it; always present.
        decided: the values that Temper chose, by key.
        num_threads: the number of CPU threads if the run uses only a CPU; None otherwise.
        attention: the attention implementation for packed rows.
        last_mlp: the tokens for which the MLP of the last layer is computed.
        model: the description of the model by its adapter.
        data: the fingerprint, numbers of examples, the hash of the files, and how rows were
            tokenized.
    """

    configuration: Required[JsonObject]
    decided: dict[str, DecidedSetting]
    precision: str
    num_threads: int | None
    attention: str
    last_mlp: str
    model: JsonObject
    data: dict[str, object]


class TrainerRunRecord(BaseRunRecord, total=False):
    """The contents of run.json for a run of a Hugging Face Trainer.

    Attributes:
        trainer: the class of the Trainer's arguments.
        settings: those settings of `DeploymentConfig` that apply to a Trainer's run.
        configuration: the whole configuration, if the Trainer was created from it.
        decided: the values that Temper chose, by key.
    """

    trainer: Required[dict[str, str]]
    settings: JsonObject
    configuration: JsonObject
    decided: dict[str, DecidedSetting]
    precision: str
    model: JsonObject
    data: dict[str, object]


class CopyFacts(TypedDict, total=False):
    """The status of a run's backup: those values of `BackupStatus` and `Completion` that are known.

    Attributes:
        text: a message for the user; always present once the run has ended.
        possible_loss_seconds: the training time that would be lost if this machine were lost now.
        published: the URL of the model at the destination.
        problem: the reason why the backup is not confirmed.
    """

    text: str
    possible_loss_seconds: float | None
    published: str
    problem: str
    place: str
    state: str
    confirmed_name: str
    confirmed_step: int
    saved_at: float
    confirmed_at: float
    present_at: float
    compared_at: float
    compared_by: str
    last_look: str
    in_flight_step: int
    in_flight_folder: str
    done_bytes: int
    total_bytes: int
    newest_name: str
    newest_step: int
    refused_name: str
    error: str
    num_failures: int
    advice: str
    published_folders: dict[str, str]
    changed_at: float


class StageRecord(TypedDict):
    """The duration of one stage of a run."""

    name: str
    what: str
    seconds: float
    error: NotRequired[str]


class ForecastRow(TypedDict):
    """A quantity in the forecast, with its actual value. `error` is relative to the actual value.

    Attributes:
        first_step: the number of completed steps when the forecast was made, if the run was
            resumed. Both values then cover only the remaining steps.
    """

    what: str
    foretold: float
    was: float
    error: float
    first_step: int


class CostRecord(TypedDict):
    """The cost of a run, over all sessions that ended normally.

    Attributes:
        seconds: the total time of the sessions, each from its start to its summary.
        text: `amount` with its currency.
    """

    price_per_hour: str
    seconds: float
    amount: float
    text: str


class ExampleRecord(TypedDict, total=False):
    """A held-out prompt, with the model's answers before and after training."""

    prompt: str | None
    expected: str | None
    before: str | None
    after: str | None


class AdviceRecord(TypedDict):
    """A piece of advice that follows from the final metrics of a run.

    Attributes:
        command: the command to run, or the setting to change.
    """

    text: str
    command: str


class Summary(TypedDict, total=False):
    """The contents of summary.json. Numbers that are not finite are written by name.

    Attributes:
        status: a `RunStatus`; always present.
        reason, signal, error: the reason why the run stopped, or the signal or error that ended it.
        before, after: metrics on held-out data, by name.
        held_out_changed_after: the step after which the held-out rows changed; missing if they did
            not change. The metrics from before the change are omitted, because they are not
            comparable.
        loss_function: the loss function of these metrics if it is not a built-in one.
        system_prompt: the system prompt of all rows; missing if there is none or more than one.
        has_context: True if the rows contain a context for each question, and otherwise missing.
        num_pairs: the number of held-out pairs of a chosen and a rejected answer that were ranked.
        went_on: the record of each resume, the oldest first.
        history: the changes during training, as in run.json; missing if there were none.
        files: the seal, that is, the hash of each file that no longer changes.
    """

    status: str
    reason: str | None
    signal: str | None
    error: str | None
    steps: int
    final_step: int  # the step of the model in final/, if it is not the last one
    total_steps: int
    tokens: int
    seconds: float
    loss: float
    recoveries: list[JsonObject]
    peak_memory_bytes: float | None
    paths: dict[str, str]
    epochs: int
    num_processes: int
    memory: dict[str, object] | None
    before: dict[str, object]
    after: dict[str, object] | None
    held_out_changed_after: int
    loss_function: str
    example: ExampleRecord | None
    num_questions: int
    validation_prompts: int
    num_held_out: int
    num_pairs: int
    system_prompt: str
    has_context: bool
    advice: list[AdviceRecord]
    forecast: list[ForecastRow]
    cost: CostRecord
    backup: CopyFacts
    stages: list[StageRecord]
    went_on: list[Continuation]
    history: list[JsonObject]
    files: dict[str, str]
