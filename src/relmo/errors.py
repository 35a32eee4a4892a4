"""The exceptions a user can see. Each message says what is wrong, where, and what to do next, in one line.

The command line prints the message and exits with status 2; a traceback is for our mistakes, never for theirs.
"""


class RelmoError(Exception):
    """Something the user can put right: the message says what and how."""


class SettingError(RelmoError):
    """A setting is unknown, of the wrong type, or cannot go with another."""


class CorpusError(RelmoError):
    """A text cannot be read, or is not enough to work with."""


class VocabularyError(RelmoError):
    """A vocabulary file is broken, or does not fit the model."""


class ModelError(RelmoError):
    """A model folder is missing, incomplete, corrupted, or of a kind the verb does not take."""


class StorageError(RelmoError):
    """Output cannot be written: the disk is full, or the place is not writable."""
