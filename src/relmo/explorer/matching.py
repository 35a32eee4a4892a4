"""Matches users' regular expressions in a process of its own, so that one that never ends holds up nobody."""

import json
import re
import subprocess
import sys

from relmo.errors import SettingError

SECONDS = 10.0


def stretches(pattern: str, text: str, *, seconds: float = SECONDS) -> list[tuple[int, int]]:
    """Where a pattern matches, or its groups where it has any."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise SettingError(f"the regular expression {pattern[:80]!r} is wrong: {error}") from None
    command = [sys.executable, "-m", "relmo.explorer.matching"]
    given = json.dumps({"pattern": pattern, "text": text})
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=seconds, check=True)
    except subprocess.TimeoutExpired:
        raise SettingError(
            f"the regular expression {pattern[:80]!r} took more than {seconds:g} s; make it simpler"
        ) from None
    return [(begin, end) for begin, end in json.loads(done.stdout)]


def main() -> None:
    """Reads pattern and text from standard input, and writes the stretches to standard output."""
    given = json.load(sys.stdin)
    expression = re.compile(given["pattern"], re.MULTILINE)
    groups = range(1, expression.groups + 1) if expression.groups else [0]
    spans = (match.span(group) for match in expression.finditer(given["text"]) for group in groups)
    json.dump([span for span in spans if 0 <= span[0] < span[1]], sys.stdout)


if __name__ == "__main__":
    main()
