"""Fewer bits: grids, outliers, blocks of scales, calibration."""
