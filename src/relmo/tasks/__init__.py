"""Models for tasks, a file a task; `task.py` is what they share, `settings/kinds.py` says which there are."""
