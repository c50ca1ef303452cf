"""The demo: crawl pages, stream them into a server as they come, ask; then the same by waiting, and compare."""
