"""The engine: receives the buckets of backward passes and returns their averages.

`attach_engine` connects the ranks and makes a `Handle`, which users hold. A handle has an `Engine`,
which owns the threads and channels, and `BackwardPasses`, which counts passes and undoes them. None
of it knows where gradients come from: DDP, FSDP2 and Horovod each bring a `GradientSource`.

**The life of a bucket**, over three threads:

1. The *backward* thread begins a pass with `BackwardPasses.begin`, which checks whether the
   optimizer has applied the previous pass, and makes a `Step`, or leaves the pass uncompressed. It
   hands each bucket to `average`: its `BucketContents` has the slots of its parameters, and which
   of them are compressed; `ExchangePipeline.submit` enqueues it, and the source gets a future.
2. The *sending* thread takes buckets in that order, which is the same on all ranks. It encodes and
   starts the collectives (`gradwire.torch.exchange`), and records in the step what it has changed.
3. The *receiving* thread waits for the collectives, learns how all ranks fared, and decodes. With
   the last bucket it ends the step: the step counts on all ranks, or is undone on all of them, bit
   for bit, and its futures are resolved with infinities.
4. Back in the *backward* thread, the source raises the error of the pass, if there is one.

=======================  ===========================================================================
``attach``, ``handle``   from options and parameters to a handle; what users call
``config``               the options common to every `attach`, and their checks
``engine``               the lifetime of threads and channels
``pipeline``, ``step``   the two threads, and the tasks that pass through them
``backward``             whether a pass counts, is averaged uncompressed, or is undone
``bucket_contents``      the parameters of a bucket and their offsets
``parameter``            a parameter's codec, state, size limit and memory order
``sharding``             the part of a parameter that a rank of a node owns
``scheduler``            which codec a parameter has now
``grad_tracker``         whether ``.grad`` holds a gradient, an average or a step
``optimizer_link``       whether the attached optimizer makes the steps, and applied the last pass
``moments``              handover of moments between an optimizer and codecs
``square_ratio``         how large the squares of averages are beside those of each rank
``pairing``              which optimizers suit which codecs
``local_gradients``      exchange of gradients outside a backward pass
``consensus``            agreement between ranks on options and operations
``metrics``              counters, times, and warnings of too many bytes
``figures``              the report
=======================  ===========================================================================
"""
