"""What run.json and summary.json hold, key by key.

Files of older versions lack some keys, and a run that was killed has written less: what not every
file has is not required here. Loads no torch.
"""

from typing import NotRequired, Required, TypedDict

from infrastructure.core.json_text import JsonObject, JsonValue


class SettingRecord(TypedDict):
    """A setting, and the place where it was set."""

    value: JsonValue
    source: str


class Continuation(TypedDict):
    """That a run went on from a checkpoint.

    Attributes:
        step: of the checkpoint.
        was_killed: nobody had stopped it in order.
        place: where it was brought back from; missing where it had never been away.
    """

    step: int
    was_killed: bool
    place: NotRequired[str]


class BroughtBack(TypedDict):
    """That a run was brought back from a place, and has not gone on since.

    Attributes:
        place: without a password.
        was_killed: nobody had stopped it in order, as far as its version tells.
    """

    place: str
    was_killed: bool


class BaseRunRecord(TypedDict, total=False):
    """What run.json says whatever trains.

    Attributes:
        created: local time with its offset, as ISO 8601.
        command: the command line, without secrets.
        hardware: of the machine, with `device` and `processes` of the run.
        went_on: as in summary.json, and travels with the versions.
        brought_back: until it goes on.
        history: what changed under way, oldest first; see `run.history`.
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
    """What was chosen for a setting that the configuration left open."""

    value: int | str
    origin: str


class RunRecord(BaseRunRecord, total=False):
    """run.json of a run of this package's own loop.

    Attributes:
        configuration: as `DeploymentConfig.from_dict` reads it; every file has it.
        decided: by key.
        num_threads: of the CPU, which computes by itself; None elsewhere.
        attention: how packed rows are attended to.
        last_mlp: at which tokens the last layer's MLP is computed.
        model: as the model's adapter describes it.
        data: fingerprint, numbers of examples, hash of the files, and how rows became tokens.
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
    """run.json of a Trainer's run.

    Attributes:
        trainer: the class of its arguments.
        settings: those of `DeploymentConfig` that count there.
        configuration: the whole of it, where the Trainer was made from it.
        decided: by key.
    """

    trainer: Required[dict[str, str]]
    settings: JsonObject
    configuration: JsonObject
    decided: dict[str, DecidedSetting]
    precision: str
    model: JsonObject
    data: dict[str, object]


class CopyFacts(TypedDict, total=False):
    """How the copies of a run stood: what is known of `BackupStatus` and `Completion`.

    Attributes:
        text: for people; every file of a run that has ended has it.
        possible_loss_seconds: of training, if this machine were lost at that moment.
        published: where the model lies at the place.
        problem: why the copy is not confirmed.
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
    """One stage of a run."""

    name: str
    what: str
    seconds: float
    error: NotRequired[str]


class ForecastRow(TypedDict):
    """A quantity that was forecast, and what it came to; `error` is relative.

    Attributes:
        first_step: steps done when it was forecast, as where the run went on; both numbers are of
            what was left.
    """

    what: str
    foretold: float
    was: float
    error: float
    first_step: int


class CostRecord(TypedDict):
    """What a run has cost, in all sessions that ended in order.

    Attributes:
        seconds: from the beginning of each session to its summary.
        text: `amount` with its currency.
    """

    price_per_hour: str
    seconds: float
    amount: float
    text: str


class ExampleRecord(TypedDict, total=False):
    """A held-out prompt with what the model wrote before and after the training."""

    prompt: str | None
    expected: str | None
    before: str | None
    after: str | None


class AdviceRecord(TypedDict):
    """What the numbers at the end of a run suggest to do.

    Attributes:
        command: to be typed, or what of it is to be given otherwise.
    """

    text: str
    command: str


class Summary(TypedDict, total=False):
    """summary.json; what is no finite number stands there by its name.

    Attributes:
        status: a `RunStatus`; every file has it.
        reason, signal, error: why it stopped, or what ended it.
        before, after: numbers on held-out data, by name.
        held_out_changed_after: the step after which other rows were held out, so that what was
            measured before is not comparable, and left out; missing where they stayed.
        loss_function: which loss theirs is, where that is none of ours.
        system_prompt: of every row of the data; missing where they have none, or several.
        has_context: the rows say what their questions are about; missing where they do not.
        num_pairs: held-out pairs of a better and a worse answer that were ranked.
        went_on: where it went on after it had ended too early, the first time first.
        history: what changed under way, as in run.json; missing where nothing did.
        files: the seal: the hash of each file that nothing writes to any more.
    """

    status: str
    reason: str | None
    signal: str | None
    error: str | None
    steps: int
    final_step: int  # whose model lies in final/, where that is not the last one
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
