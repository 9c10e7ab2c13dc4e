"""Import from another tool: many items go into a filter, and an interrupted import goes on where it stopped."""
