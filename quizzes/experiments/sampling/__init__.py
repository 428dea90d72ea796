"""Sampling filters, seeds, penalties and beam search."""
