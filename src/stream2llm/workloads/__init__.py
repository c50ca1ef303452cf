"""Retrieval workloads: their trace format, where traces come from, their characteristics, and what a run logged.

Nothing here needs vLLM. Formats: docs/traces.md.
"""
