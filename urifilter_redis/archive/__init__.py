"""Archives: where they are kept, their formats, closed slices, checkpoints, export, import and upkeep."""
