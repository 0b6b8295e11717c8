"""The conversation with the API server."""
