"""The report on event logs: tables, pictures, one HTML file (docs/report.md)."""
