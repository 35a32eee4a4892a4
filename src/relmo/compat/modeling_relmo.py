"""Classes of a model for transformers. Its folder has a copy of this file, which needs relmo: pip install relmo."""

from relmo.compat.transformers import RelmoConfig, RelmoForCausalLM, RelmoTokenizer  # noqa: F401
