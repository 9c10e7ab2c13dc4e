"""Archives: homes, formats, closed slices, checkpoints; above the flows, exporting and looking after them."""
