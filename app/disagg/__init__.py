"""`prep disagg`: a prefill engine, a decode engine and a router between them, measured against two plain engines."""
