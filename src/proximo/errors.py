"""The two kinds of errors: what the user can correct, and what went wrong in a run."""

import reprlib

LONGEST_QUOTE = 80
_short = reprlib.Repr()
_short.maxlevel, _short.maxstring, _short.maxlong, _short.maxother = 4, *[5 * LONGEST_QUOTE] * 3
_short.maxdict = _short.maxlist = _short.maxtuple = _short.maxset = 16


def printable(text: object) -> str:
    """`text` with whatever a terminal would obey or could not show spelled out: escape sequences, signs that turn the
    direction of writing, bytes of a name that are no UTF-8. Line breaks stay."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape").decode()
        for letter in str(text).expandtabs()
    )


LACK_OF_MEMORY = (
    "There is not enough memory. A run needs it for the samples of an update (env.num_envs * ppo.rollout_length, each "
    "with its observation) and for its networks (network.hidden_sizes, times the size of an observation); make these "
    "smaller (docs/troubleshooting.md)."
)


def is_lack_of_memory(error: BaseException) -> bool:
    """Python's error, or XLA's, which is known by its words alone."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


def quoted(value: object) -> str:
    """`value` as an error quotes it: on one line, cut where it is long, and no work where it is endless."""
    try:
        text = " ".join(_short.repr(value).split())
    except ValueError:  # a number of more digits than Python writes
        text = "a number of thousands of digits"
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"


class ProximoError(Exception):
    """Anything Proximo says in words. `exit_code` is what the command line ends with."""

    exit_code = 1

    def __init__(self, sentence: object = ""):
        # A sentence may quote a stranger's file, and be printed by anybody.
        super().__init__(printable(sentence))


class UserError(ProximoError):
    """A wrong setting, name or file: the message says what was expected, what came, what to do."""

    exit_code = 2


class OtherKind(UserError):
    """A factory made something other than an environment of its family: `made`."""

    def __init__(self, sentence: str, made: object):
        super().__init__(sentence)
        self.made = made


class TrainingError(ProximoError):
    """A run that had to end early: the message names the cause, and what was trained has been kept."""


class EnvError(TrainingError):
    """An environment failed: a sentence, and where the environment raised something, its traceback."""

    def __init__(self, sentence: str, trace: str = ""):
        super().__init__(f"{sentence}\n\n{trace}".rstrip())
        self.sentence, self.trace = sentence, trace
