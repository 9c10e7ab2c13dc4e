"""Scripts that measure one part each: ``python -m bench NAME …``."""
