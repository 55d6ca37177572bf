"""The engine: it takes the buckets of backward passes, and hands back what their exchange brings.

`attach_engine` connects the ranks and makes a `Handle`, which users hold. A handle has an `Engine`,
which owns the threads and channels, and `BackwardPasses`, which counts passes and undoes them. None
of it knows where gradients come from: DDP, FSDP2 and Horovod each bring a `GradientSource`.

**The life of a bucket**, over three threads:

1. The *backward* thread begins a pass with `BackwardPasses.begin`, which looks whether the
   optimizer has applied the last one, and makes a `Step`, or stands aside. It hands each bucket to
   `average`: its `BucketContents` has the slots of its parameters, and which of them
   are compressed; `ExchangePipeline.submit` enqueues it, and the source gets a future.
2. The *sending* thread takes buckets in that order, which is the same on all ranks. It encodes and
   starts the collectives (`gradwire.torch.exchange`), and records in the step what it has changed.
3. The *receiving* thread waits for the collectives, learns how all ranks fared, and decodes. With
   the last bucket it ends the step: the step counts on all ranks, or is undone on all of them, bit
   for bit, and its futures are resolved with infinities.
4. Back in the *backward* thread, the source raises the error of the pass, if there is one.

=======================  ===========================================================================
``attach``, ``handle``   from options and parameters to a handle; what users call
``config``               what every `attach` takes, and how it is checked
``engine``               the lifetime of threads and channels
``pipeline``, ``step``   the two threads, and what goes through them
``backward``             when a pass begins, counts, stands aside or is undone
``bucket_contents``      which parameters a bucket has, and where
``parameter``            what is kept of a parameter: codec, state, size limit, memory order
``sharding``             the part of a parameter that a rank of a node owns
``low_rank_state``       the state of a parameter that is sent as factors
``scheduler``            which codec a parameter has now
``grad_tracker``         what each ``.grad`` holds: a gradient, an average or a step
``optimizer_link``       what becomes of exchanged gradients, and moments that change hands
``optimizer_identity``   whether the optimizer that makes steps is the one that was attached
``pairing``              which optimizers go with which codecs
``local_gradients``      gradients that are exchanged outside of a backward pass
``consensus``            how ranks find out that they do the same
``metrics``              counters, timestamps and the report
=======================  ===========================================================================
"""
