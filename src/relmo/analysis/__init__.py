"""Numbers about a model: plain functions from loaded models and typed examples to plain data."""
