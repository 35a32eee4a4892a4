"""What a run tells while it goes on. The command line prints it (`cli/terminal.py`); a caller may give his own."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relmo.training.loop import Step
    from relmo.training.plan import Plan


class Reporter:
    """This one keeps silent."""

    def plan(self, plan: "Plan") -> None:
        """Before the first step."""

    def logged(self, record: dict[str, Any]) -> None:
        """After each line of metrics.jsonl."""

    def stepped(self, step: "Step", total: int) -> None:
        """After each step."""

    def said(self, message: str) -> None:
        """Anything else worth a line."""
