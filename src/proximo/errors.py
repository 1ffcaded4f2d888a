"""The two things that can go wrong, told apart: what the user can mend, and what happened to a run."""


class ProximoError(Exception):
    """Anything Proximo says in words. `exit_code` is what the command line ends with."""

    exit_code = 1


class UserError(ProximoError):
    """A wrong setting, name or file: the message says what was expected, what came, what to do."""

    exit_code = 2


class OtherKind(UserError):
    """A factory made something else than its family's environments: `made`."""

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
