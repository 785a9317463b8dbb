// Owns: what a piece is: a fixed amount of hot work on prepared state.
// Keeps: the clock and the instruction counter run the same function, so that they can never speak of different work;
// each run of a piece does the same work as the one before, from the second on.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace sluice::micro {

using Run = std::function<void()>;

struct Piece {
    const char* name = nullptr;       // "room.what"
    const char* operation = nullptr;  // what one of them is
    uint64_t operations = 0;          // in one run
    Run (*prepare)() = nullptr;       // makes the state, which the run keeps alive
};

const std::vector<Piece>& pieces();

}  // namespace sluice::micro
