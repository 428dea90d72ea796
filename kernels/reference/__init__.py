"""The specification: every op in plain torch, fp32 inside, written to be obviously right."""
