"""The tasks: model, data, and what is measured on held-out data."""
