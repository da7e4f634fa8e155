"""Error messages for words and flags that `temper` does not know."""

from collections.abc import Collection

from infrastructure.config.elsewhere import ABSENT, SAME, known_elsewhere, plain_name
from infrastructure.config.sources.flags import flag_names
from infrastructure.core.lookup import nearest
from infrastructure.core.messages import phrase

# Names that other tools use for a command.
COMMANDS_ELSEWHERE = {
    **dict.fromkeys(("finetune", "fine-tune", "fit", "sft", "run"), "train"),
    "continue": "resume",
    "benchmark": "bench",
    **dict.fromkeys(("generate", "infer", "predict", "inference"), "ask"),
    **dict.fromkeys(("convert", "merge", "save"), "export"),
    **dict.fromkeys(("monitor", "logs", "tail", "status"), "watch"),
    **dict.fromkeys(("runs", "ls", "ps", "history"), "list"),
    **dict.fromkeys(("restore", "sync", "copy"), "backup"),
    **dict.fromkeys(("plan", "estimate", "forecast", "preview", "validate", "dry-run"), "check"),
}
# Words that need no command, and the message that explains it.
NO_COMMAND = {
    "report": "commands.report_is_a_file",
    **dict.fromkeys(("compare", "diff"), "commands.compare_models"),
}


def flag_hint(flag: str, known: Collection[str]) -> str:
    """Return a hint about the `known` flag that the user probably meant, or "" if there is none.

    Considered are flags of other tools, and flags with a similar spelling.
    """
    name = plain_name(flag)
    is_taken = any(flag_names(s.partition("=")[0])[0] in known for s in SAME.get(name, ()))
    if name in ABSENT or is_taken:
        return f"; {known_elsewhere(flag)}"
    meant = nearest(flag, known)
    return phrase("commands.did_you_mean", meant=meant) if meant else ""


def unknown_command(command: str, word: str, known: Collection[str]) -> str:
    """Return the message for an unknown word, with the command that the user probably meant."""
    if plain_name(word) in ABSENT and word not in COMMANDS_ELSEWHERE:
        advice = known_elsewhere(word)
        return phrase("commands.unknown_command_advice", word=word, advice=advice)
    if word in NO_COMMAND:
        advice = phrase(NO_COMMAND[word])
        return phrase("commands.unknown_command_advice", word=word, advice=advice)
    meant = COMMANDS_ELSEWHERE.get(word) or nearest(word, known)
    if meant in known:
        return phrase("commands.unknown_command_meant", word=word, meant=f"{command} {meant}")
    return phrase("commands.unknown_command", word=word, known=", ".join(known))
