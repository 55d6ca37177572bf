"""Checkpoints: the states of all parameters, saved and restored on any number of ranks.

`format` defines the checkpoint of one rank, `load` creates and restores it, `reshard` computes the
states of one grid of ranks from those of another, `gather` brings the checkpoints of all ranks
together, and `files` keeps them in a folder, one file per rank.
"""
