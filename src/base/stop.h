// Owns: how somebody who started something long says that it is to stop: the form that ggml has for it, too.
#pragma once

namespace sluice {

// Asked again and again, by whoever does the work, between two pieces of it. Asking is cheap and does not block.
struct Stop {
    bool (*asked)(void* data) = nullptr;  // none: never
    void* data = nullptr;

    [[nodiscard]] bool possible() const { return asked != nullptr; }
    [[nodiscard]] bool operator()() const { return asked != nullptr && asked(data); }
};

}  // namespace sluice
