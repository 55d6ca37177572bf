"""Compression codecs for tensors that have to cross a wire."""
