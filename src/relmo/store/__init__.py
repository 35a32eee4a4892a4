"""A model <-> a disk: its folder, its weights, original ELMo files, and the models that another one is built on."""
