// Owns: an engine in front of another one, that does to reads what drives do at their worst: fails them, cuts them
// short, brings wrong bytes, forgets them, and brings them in any order. For gates and tests of whole models. Keeps:
// the contract of Engine, but for wrong bytes where they are planned; the same seed, plan and reads give the same
// faults.
#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "io/engine.h"

namespace sluice::io {

// What becomes of a read that fails.
enum class Harm : uint8_t {
    error,  // Unreliability::error
    cut,    // half of what is needed comes, and nothing good after it: an error, too
    wrong,  // the last byte that is needed is another; who has no checksum does not notice
};

// What happens, and what has. Shared with the engine, changed by its user between two calls.
struct Unreliability {
    // Read number `fail` (from 0, counted from plan()) and all later ones of the same place fail, `fails` times.
    std::optional<uint64_t> fail;
    uint64_t fails = 0;
    Harm harm = Harm::error;
    int error = EIO;
    // Read number `stick` does not come until this is reset, as long as somebody limits his wait; or until so many of
    // his waits have ended in vain because nothing else was on its way.
    std::optional<uint64_t> stick;
    uint64_t stick_for = UINT64_MAX;
    // Completions are handed out one by one, in an order that the seed decides, all that are there mixed.
    std::optional<uint64_t> order_seed;

    uint64_t seen = 0;      // reads since plan()
    uint64_t failed = 0;    // of those
    uint64_t overtook = 0;  // of those: handed out before one that was asked for earlier
    uint64_t in_vain = 0;   // waits, as above
    // A new plan: nothing happens, and counting starts anew.
    void plan() { *this = {}; }
};

class UnreliableEngine final : public Engine {
  public:
    UnreliableEngine(std::unique_ptr<Engine> inner, std::shared_ptr<Unreliability> what)
        : inner_(std::move(inner)), what_(std::move(what)) {}

    void submit(std::span<const ReadOp> batch) override;
    size_t wait(std::span<Completion> out) override;
    size_t wait_for(std::span<Completion> out, Nanos most) override;
    size_t poll(std::span<Completion> out) override;
    Status register_memory(std::span<std::byte> memory) override { return inner_->register_memory(memory); }
    [[nodiscard]] size_t outstanding() const override { return inner_->outstanding() + come_; }
    [[nodiscard]] const char* name() const override { return inner_->name(); }
    [[nodiscard]] const EngineTotals& totals() const override { return inner_->totals(); }

  private:
    static constexpr size_t kAtOnce = 64;
    struct Read {
        uint64_t number = 0;
        uint64_t tag = 0;
        std::byte* dst = nullptr;
        uint32_t need = 0;
        bool fails = false;
        std::optional<Completion> done = {};
    };
    [[nodiscard]] Completion harmed(const Read& read, Completion done) const;
    void take(std::span<const Completion> done);
    size_t hand_out(std::span<Completion> out, bool also_stuck);

    std::unique_ptr<Engine> inner_;
    std::shared_ptr<Unreliability> what_;
    std::vector<Read> reads_;     // not handed out, in order of submission
    size_t come_ = 0;             // of those
    const File* file_ = nullptr;  // of the place that fails
    uint64_t offset_ = 0;
    std::mt19937_64 random_;
    std::optional<uint64_t> seeded_;
};

}  // namespace sluice::io
