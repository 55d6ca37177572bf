"""Exchanges in which ranks own ranges, beside the all-gather."""
