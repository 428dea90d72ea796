"""Our quantiser: a float checkpoint in, a quantised one in a public format out (`prep zoo quantize`)."""
