"""Training over a slow link, with and without compression: ``make demo``."""
