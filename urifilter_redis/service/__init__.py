"""The HTTP service: ``urifilter serve``; needs the extra ``server``."""

__all__ = ["FOLDER_VARIABLE"]

#: Where workers count what they answer; prometheus_client looks for it when it is imported.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
