"""Regular expressions of users, matched in a separate process with a time limit.

The process imports only this module, so that it starts fast.
"""

import json
import re
import subprocess
import sys

from relmo.errors import SettingError

TIMEOUT = 10.0  # seconds


def find_matches(pattern: str, text: str, *, timeout: float = TIMEOUT) -> list[tuple[int, int]]:
    """Return the character spans of a pattern's matches, or of its groups if it has any."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise SettingError(f"Invalid regular expression {pattern[:80]!r}: {error}.") from None
    command, request = [sys.executable, "-m", "relmo.explorer.matching"], json.dumps({"pattern": pattern, "text": text})
    try:
        process = subprocess.run(command, input=request, capture_output=True, text=True, timeout=timeout, check=True)
    except subprocess.TimeoutExpired:
        message = f"The regular expression {pattern[:80]!r} took more than {timeout:g} s; use a simpler one."
        raise SettingError(message) from None
    return [(begin, end) for begin, end in json.loads(process.stdout)]


def main() -> None:
    """Read pattern and text from standard input, and write the spans to standard output."""
    request = json.load(sys.stdin)
    expression = re.compile(request["pattern"], re.MULTILINE)
    groups = range(1, expression.groups + 1) if expression.groups else [0]
    spans = (match.span(group) for match in expression.finditer(request["text"]) for group in groups)
    json.dump([span for span in spans if 0 <= span[0] < span[1]], sys.stdout)


if __name__ == "__main__":
    main()
