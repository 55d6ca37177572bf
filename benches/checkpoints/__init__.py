"""What training sends, saves, and keeps for backward, in fewer bytes: ``make checkpoints``."""
