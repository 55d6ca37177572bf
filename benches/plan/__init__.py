"""Predictions of `gradwire.cost` beside steps of real processes over shaped links."""
