"""Choose codes of few bits by calibration, by budgets and in training: ``make quantize``."""
