// Divides one piece of memory into parts. Plain C++.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gradwire {

// Each part begins at a multiple of 256 bytes from the base: after one of 3 floats and one of 100, 512 bytes are
// used. Of no memory at all it tells how much it takes, and its pointers are offsets.
struct Arena {
    void* base;
    std::uint64_t used = 0;

    template <class T>
    T* take(std::uint64_t count) {
        T* const part = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(base) + used);
        used += (count * sizeof(T) + 255) / 256 * 256;
        return part;
    }
};

// Fills memory that was taken for the elements of a list, and that others only read.
template <class T>
void put(const T* part, const std::vector<T>& elements) {
    std::copy(elements.begin(), elements.end(), const_cast<T*>(part));
}

}  // namespace gradwire
