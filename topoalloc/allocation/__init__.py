"""Who holds what: the pure ledger of grants and the reading of one container's calls as one conversation."""
