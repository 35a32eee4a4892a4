"""What `relmo serve` takes on at once, and where it says no."""

from dataclasses import dataclass, fields

from relmo.errors import SettingError

MOST = 1 << 30
LEAST = {"rate": 0, "grace": 0, "seconds": 0.1}


@dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """How much a client may ask for, and how much all of them together."""

    max_bytes: int = 1 << 20
    """Bytes of a request; a larger one is answered with 413."""
    max_words: int = 2048
    """Units of a request, counted as its model reads them (words, subwords or characters), with those that the model
    may write. A request with more is answered with 413. One input, or one text whose state is carried, may have half as
    many."""
    max_source: int = 256
    """Units of one input of a sequence-to-sequence model. A longer input is answered with 413."""
    max_output: int = 128
    """Units that a sequence-to-sequence model may write for one input."""
    batch_words: int = 512
    """Units that are computed together, of one or several requests; fewer make others wait less for large requests."""
    queue: int = 256
    """Requests that the server holds at once: waiting, computed (also if the client has gone), or answered and not yet
    read. More get 503. Together they may have 16 times --max-words units."""
    rate: float = 0.0
    """Requests a second that one client may send, 0 for any number; more get 429."""
    connections: int = 1024
    """Connections at once. If one more comes, the server closes the one that has waited longest for its client."""
    seconds: float = 10.0
    """Seconds that a client may take to send its request, or to read some of its answer."""
    grace: int = 30
    """Seconds that the server has to finish the requests it accepted when it is told to end."""

    @property
    def max_item_words(self) -> int:
        """Units of one input of a request."""
        return (self.max_words + 1) // 2

    @property
    def queue_words(self) -> int:
        """Words that are in the house at once."""
        return 16 * self.max_words

    def check(self) -> None:
        """Raises where nobody could be served."""
        for field in fields(self):
            value, least = getattr(self, field.name), LEAST.get(field.name, 1)
            if not least <= value <= MOST:
                raise SettingError(f"--{field.name.replace('_', '-')} is from {least} to {MOST:,}, not {value}")
