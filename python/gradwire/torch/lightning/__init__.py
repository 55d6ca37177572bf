"""A callback for Lightning's Trainer.

>>> import gradwire
>>> from gradwire.torch.lightning import Compress
>>> trainer = Trainer(strategy="ddp", devices=2, callbacks=[Compress(gradwire.topk(ratio=0.01))])
>>> trainer.fit(module)

Neither the module nor the rest of the Trainer changes. It works with ``lightning`` and with
``pytorch_lightning``. See ``docs/lightning.md``.
"""

from gradwire.torch.lightning.callback import Compress

__all__ = ["Compress"]
