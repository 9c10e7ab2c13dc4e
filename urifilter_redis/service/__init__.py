"""The HTTP service: ``urifilter serve``; needs the extra ``server``."""

__all__ = ["FOLDER_VARIABLE"]

#: The variable that names the folder of the workers' counts; prometheus_client reads it when it is imported.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
