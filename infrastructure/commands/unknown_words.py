"""What is said of a word or flag that `temper` does not know."""

from collections.abc import Collection

from infrastructure.config.elsewhere import ABSENT, SAME, plain_name
from infrastructure.config.sources.flags import as_flags
from infrastructure.core.lookup import nearest
from infrastructure.core.messages import phrase

# What other tools call a command.
COMMANDS_ELSEWHERE = {
    **dict.fromkeys(("finetune", "fine-tune", "fit", "sft", "run"), "train"),
    **dict.fromkeys(("resume", "continue"), "train-resume"),
    **dict.fromkeys(("eval", "evaluate", "benchmark"), "train-eval"),
    **dict.fromkeys(("chat", "generate", "infer", "predict", "inference"), "ask"),
    **dict.fromkeys(("convert", "merge", "save"), "export"),
    **dict.fromkeys(("monitor", "logs", "tail", "status"), "watch"),
    **dict.fromkeys(("runs", "ls", "ps", "history"), "list"),
    **dict.fromkeys(("restore", "sync", "copy"), "backup"),
    **dict.fromkeys(("plan", "estimate", "forecast", "preview", "validate", "dry-run"), "check"),
}
# What lies in a file, and needs no command.
NO_COMMAND = {
    "report": "report.html in the run's folder is the report; temper watch RUN shows a run as it"
    " is",
    **dict.fromkeys(
        ("compare", "diff"), "temper train-eval MODEL DATA --against OTHER compares two models"
    ),
}


def flag_hint(flag: str, known: Collection[str], command: str) -> str:
    """What it is called here, what to do where it is not here, or the nearest of the flags `known`
    to `command`."""
    name = plain_name(flag)
    if name in ABSENT:
        return f"; {ABSENT[name]}"
    if name in SAME and {key.partition("=")[0] for key in as_flags(SAME[name]).split()} & {*known}:
        return f"; it is {as_flags(SAME[name])} here"
    meant = nearest(flag, known)
    return f"; did you mean {meant}?" if meant else f"; see {command} --help"


def unknown_command(command: str, word: str, known: Collection[str]) -> str:
    """The sentence for a word that `command` does not take."""
    if plain_name(word) in ABSENT and word not in COMMANDS_ELSEWHERE:
        return f"unknown command {word!r}; {ABSENT[plain_name(word)]}"
    if word in NO_COMMAND:
        return f"unknown command {word!r}; {NO_COMMAND[word]}"
    if word == "help":
        return phrase("commands.help_is_a_flag", word=word, command=command)
    meant = COMMANDS_ELSEWHERE.get(word) or nearest(word, known)
    hint = f"; did you mean {command} {meant}?" if meant in known else ""
    return phrase("commands.unknown_command", word=word, hint=hint, known=", ".join(known))
