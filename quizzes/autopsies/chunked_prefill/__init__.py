"""Chunked prefill that forgets what came before the chunk."""
