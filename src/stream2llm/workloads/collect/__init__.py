"""Collectors: traces of a real crawler and of a real vector search, question by question (docs/collect.md)."""


class CollectError(ValueError):
    """What a collector was given cannot be used; the message names it and the remedy."""
