"""What training saves, and what it saves for backward, in fewer bytes: ``make checkpoints``."""
