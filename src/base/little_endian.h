// Owns: whole numbers in the order of bytes that our files have: the lowest first.
// Keeps: nothing is read beyond the end; whoever reads asks once, afterwards, whether all of it was there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

template <typename N>
void put_number(std::string& out, N number) {
    for (size_t i = 0; i < sizeof(N); ++i) out.push_back(static_cast<char>((number >> (8 * i)) & 0xffU));
}

// Takes numbers from the front.
struct NumberReader {
    std::string_view rest;
    bool ok = true;

    template <typename N>
    N take() {
        if (rest.size() < sizeof(N)) {
            ok = false;
            return 0;
        }
        N n = 0;
        for (size_t i = 0; i < sizeof(N); ++i)
            n = static_cast<N>(n | static_cast<N>(static_cast<N>(static_cast<unsigned char>(rest[i])) << (8 * i)));
        rest.remove_prefix(sizeof(N));
        return n;
    }
    std::string_view take_bytes(size_t n) {
        if (rest.size() < n) {
            ok = false;
            return {};
        }
        const std::string_view bytes = rest.substr(0, n);
        rest.remove_prefix(n);
        return bytes;
    }
};

}  // namespace sluice
