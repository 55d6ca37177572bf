"""States in the memory of the host, whatever the device: the core of the host encodes."""

from gradwire.torch.backends.cpu.states import init_state, rollback

__all__ = ["init_state", "rollback"]
