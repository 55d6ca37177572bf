"""How gradients are encoded where they lie: one folder a backend, behind one interface.

`interface` says what a backend does, `choice` which one is used for a device.
"""

from gradwire.torch.backends.choice import of
from gradwire.torch.backends.interface import Backend, Bucket

__all__ = ["Backend", "Bucket", "of"]
