"""Train to the end with and without compression: ``make accuracy``."""
