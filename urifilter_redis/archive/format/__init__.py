"""The bytes of an archive: documents, manifests, packed pieces and records."""
