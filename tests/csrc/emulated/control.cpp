// The machine's settings, for ctypes.
#include "control.h"

#include <cstring>

extern "C" void emulated_configure(unsigned seed, unsigned resident, unsigned processors) {
    emulated::control().seed = seed;
    emulated::control().resident = resident;
    emulated::control().processors = processors;
}

extern "C" unsigned emulated_launches() { return emulated::control().launches; }

// How many kernels were loaded since this was called last; of those from now on, one is refused, or none.
extern "C" unsigned emulated_loaded(unsigned refused) {
    const unsigned loaded = emulated::control().loaded;
    emulated::control().loaded = 0;
    emulated::control().refused = refused;
    return loaded;
}

extern "C" void emulated_take_error(char* text, std::size_t room) {
    std::strncpy(text, emulated::take_error().c_str(), room - 1);
    text[room - 1] = 0;
}
