"""What is asked of `surprisal`: the keywords of `LanguageModel.surprisal` and `BiLM.surprisal`, and the flags of
`relmo surprisal`."""

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_type_hints

from relmo.errors import SettingError


@dataclass(frozen=True, kw_only=True)
class SurprisalOptions:
    """How much context a word has, and what counts to it."""

    context: Literal["text", "sentence"] = "text"
    """text: the state is carried from line to line, as in `evaluate`. sentence: every line is read by itself; this is
    for lists of sentences that have nothing to do with each other."""
    direction: Literal["forward", "backward"] = "forward"
    """Bidirectional models: a word given the words before it, or given those after it."""
    rows: Literal["words", "whitespace"] | None = None
    """What a row of the table is: a word as relmo's tokenizer splits text, or whatever stands between white space, with
    its punctuation. Several tokens of a model are summed to one row. The default is the model's own tokenizer."""
    space: Literal["after", "before"] | None = None
    """Models of characters: which white space counts to a word, the one after it (the default) or the one before it."""
    ends: bool = False
    """Show the ends of lines and texts (backwards, the beginnings) as rows of their own."""

    def check(self, *, characters: bool, bidirectional: bool, tokenizer: str) -> None:
        """Options that are unknown, or have no meaning for a model, are errors."""
        hints = get_type_hints(type(self))
        for field in fields(self):
            value, allowed = getattr(self, field.name), _values_of(hints[field.name])
            if value not in allowed:
                raise SettingError(f"{field.name} is {value!r}; it can be {' or '.join(map(repr, allowed))}")
        if self.direction == "backward" and not bidirectional:
            raise SettingError("direction backward goes with a bidirectional model; this one reads forwards only")
        if self.space is not None and not characters:
            raise SettingError("space is for models of characters only; leave it out")
        if self.rows == "words" and tokenizer == "whitespace" and not characters:
            raise SettingError("rows words are smaller than the units of this model, which are split at white space")


def _values_of(hint: object) -> list[object]:
    """The values that a type of a field allows."""
    if hint is bool:
        return [True, False]
    if hint is type(None):
        return [None]
    inner = get_args(hint)  # the types of a union, or the values of a Literal
    return [value for each in inner for value in _values_of(each)] if inner else [hint]
