"""An asynchronous, polite, best-first crawler of one site: a context source, for the demo and for traces."""
