"""Quantisation: grids, outliers, scales, calibration."""
