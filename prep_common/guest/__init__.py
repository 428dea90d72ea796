"""The guest process of a sandbox. It imports nothing but the standard library."""
