"""The promises, each a module; a package, so that its service ends with its tests."""
