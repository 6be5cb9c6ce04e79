"""Messages of the digests' lane."""
