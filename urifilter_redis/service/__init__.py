"""The HTTP service: ``urifilter serve``; needs the extra ``server``."""

__all__ = ["BEGAN_VARIABLE", "FOLDER_VARIABLE"]

#: The variable that names the folder of the workers' counts; prometheus_client reads it when it is imported.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

#: The variable that tells the workers when the service started, seconds since 1970.
BEGAN_VARIABLE = "_URIFILTER_BEGAN"
