// Whether a device runs this library's kernels at all, and has them loaded.
#pragma once

#include <cuda_runtime.h>

#include <vector>

namespace gradwire {

// The kernels that a source launches. Each source that does has one of these, which is known from the
// time on when the library is loaded: `const Kernels kernels{first, second<Type>};` Hidden, since another
// build of the library, loaded into the same process, would share the list otherwise.
class __attribute__((visibility("hidden"))) Kernels {
  public:
    template <class... Functions>
    explicit Kernels(Functions*... functions)
        : functions_{reinterpret_cast<const void*>(functions)...}, others_(first_) {
        first_ = this;
    }

    // Has the device load the kernels of all sources.
    static cudaError_t load_all();

  private:
    std::vector<const void*> functions_;
    const Kernels* others_;
    inline static const Kernels* first_ = nullptr;
};

// Loads all kernels, and starts one that does nothing. The error says what is in the way: a driver that
// is too old, or a device that the library has no code for. Later launches do not see it.
//
// CUDA would load each kernel at its first launch, for which it may wait until the device is idle, and
// hold up all other calls meanwhile. Beside a collective, which waits for other ranks, that can be for ever.
cudaError_t launch_probe(cudaStream_t stream);

}  // namespace gradwire
