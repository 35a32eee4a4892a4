"""Training from files to a folder: a run, its folder, and what each kind of model does between the two."""
