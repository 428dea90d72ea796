"""Is an implementation right? Random cases for every operation, compared with the reference in float64."""
