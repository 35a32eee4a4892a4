"""`relmo analyse NAME …`: the explorer's analyses on the command line."""
