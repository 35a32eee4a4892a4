"""What a client is told: one line, which can be sent."""

LINE = 400  # characters of a message
OURS = "something went wrong in relmo; the terminal that runs it says what"


def one_line(message: str) -> str:
    """A message in one line that is not too long, of characters that can be sent."""
    line = " ".join(message.split()).encode(errors="replace").decode()
    return line if len(line) <= LINE else line[: LINE - 1] + "…"
