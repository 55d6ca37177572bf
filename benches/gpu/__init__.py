"""The CUDA extension beside a copy on the device and what torch offers there."""
