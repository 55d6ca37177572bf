#include "place.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <unordered_map>

namespace emulated::races {

namespace {

struct Calls {
    std::unordered_map<const void*, std::unique_ptr<Frame>> by_place;
};

// The lines of one address: several where functions have become part of another.
void append_lines(std::string& text, const void* code) {
    Dl_info info{};
    if (!dladdr(code, &info) || info.dli_fname == nullptr) return;
    const auto offset = static_cast<const char*>(code) - static_cast<const char*>(info.dli_fbase) - 1;
    char command[4096];
    std::snprintf(command, sizeof command, "addr2line -i -e '%s' %#zx 2>/dev/null", info.dli_fname, static_cast<std::size_t>(offset));
    const std::unique_ptr<FILE, int (*)(FILE*)> answer(popen(command, "r"), pclose);
    if (!answer) return;
    char line[4096];
    while (std::fgets(line, sizeof line, answer.get())) {
        const std::string where(line, std::string(line).find_first_of(" \n"));
        if (where.find("/csrc/") == std::string::npos || where.find("/emulated/") != std::string::npos) continue;
        text += (text.empty() ? "" : ", from ") + where.substr(where.rfind('/') + 1);
    }
}

}  // namespace

const Frame* frame_of(const Frame* up, const void* from) {
    static std::unordered_map<const Frame*, Calls> calls;
    auto& frame = calls[up].by_place[from];
    if (!frame) frame = std::make_unique<Frame>(Frame{from, up});
    return frame.get();
}

std::string lines(const Place& place) {
    std::string text;
    append_lines(text, place.code);
    for (const Frame* frame = place.frame; frame; frame = frame->up) append_lines(text, frame->from);
    return text.empty() ? "an unknown place" : text;
}

}  // namespace emulated::races
