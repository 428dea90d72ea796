"""Prefix cache: E07, E08, E09, E10, E11, E23, E47, E48, E57, E58, E64."""
