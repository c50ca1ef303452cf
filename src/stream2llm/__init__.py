"""Stream retrieval context into vLLM while it is being retrieved."""

__version__ = "0.1.0"
