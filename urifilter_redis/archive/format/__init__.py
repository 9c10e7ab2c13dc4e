"""The formats of an archive: documents, manifests, packed pieces and records."""
