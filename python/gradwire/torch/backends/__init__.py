"""How tensors are encoded where they lie: one folder a backend, behind one interface.

=============  =====================================================================
``interface``  what a backend does
``dispatch``   which one is used for a tensor, and why
``cpu``        tensors on the CPU, in place
``cuda``       tensors on a GPU, in place, by the kernels of the extension
``host``       tensors on any other device, by way of copies on the host
=============  =====================================================================
"""

from gradwire.torch.backends.dispatch import BackendInUse, backend, backend_for
from gradwire.torch.backends.interface import Backend, Bucket

__all__ = ["Backend", "BackendInUse", "Bucket", "backend", "backend_for"]
