// Owns: what a context knows of its model's routers: a copy of each that can be run again, and the hidden states that
// they chose for in the graph at hand.
// Keeps: a hidden state is kept only from where it is sure to be whole; what is not known is said to be, with the
// reason. Only graphs over one token are looked at. Nothing allocates once each router was met twice.
#pragma once

#include <ggml.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "exec/router_replay.h"

namespace sluice::exec {

// Used by the thread that computes the context's graphs.
class RouterBook {
  public:
    ~RouterBook();
    RouterBook() = default;
    RouterBook(const RouterBook&) = delete;
    RouterBook& operator=(const RouterBook&) = delete;

    // A new graph: no hidden state is known.
    void begin_graph();

    // `graph` has come to the first product of the block of `set`, its node `at`; nodes before it are computed.
    void reach(uint32_t set, ggml_cgraph* graph, int at);
    // What the router of `set` chose for in this graph. Empty: its block was not reached, or is of several tokens, or
    // see why().
    [[nodiscard]] std::span<const float> input(uint32_t set) const;
    // nullptr: not met yet, or see why().
    [[nodiscard]] RouterReplay* replay(uint32_t set);
    // The router of set `of`, to be run on what that of `from` chose for. nullptr where one of them is not known, they
    // differ in size, or there is nothing to run it with.
    [[nodiscard]] RouterReplay* replay_on(uint32_t of, uint32_t from);
    // What replays are to be run with: the calling thread alone. A router is small, and waking other threads for each
    // of its nodes takes longer than the nodes. nullptr: ggml has none.
    [[nodiscard]] ggml_backend_t cpu();
    // Why the block of `set`, when it was met last, had no router or no hidden state; empty if it had.
    [[nodiscard]] const std::string& why(uint32_t set) const;

    // Some routers' hidden states do not live until the block: whoever computes the router itself, which is the CPU
    // backend, asks which products they go into, and tells when such a product is computed.
    [[nodiscard]] bool has_taps() const { return (listens_ && !taps_.empty()) || keeps_states_; }
    [[nodiscard]] bool is_tapped(const ggml_tensor* node) const;
    void tapped(const ggml_tensor* node);

    // Whether anybody asks for hidden states at present: if not, no product is looked for. By default yes.
    void listen(bool listens) { listens_ = listens; }

    // The state that a layer's attention is given in this graph, and when it was there. Only after keep_states().
    struct State {
        std::vector<float> numbers;
        Nanos at = 0;
    };
    void keep_states() { keeps_states_ = true; }
    // nullptr: none.
    [[nodiscard]] const State* before_attention(int layer) const;

  private:
    static constexpr int kMaxLayers = 4096;
    struct Known {
        const ggml_tensor* gate = nullptr;
        std::optional<RouterReplay> replay;
        std::vector<float> input;
        bool fresh = false;  // `input` is of this graph
        std::string why;
    };
    struct Tap {
        const ggml_tensor* gate = nullptr;
        std::vector<float> input;
        bool fresh = false;
    };
    bool take_input(Known& known, const ggml_tensor* input, ggml_cgraph* graph, int at);

    ggml_backend_t cpu_ = nullptr;
    std::vector<Known> sets_;
    std::vector<Tap> taps_;
    bool listens_ = true;
    bool keeps_states_ = false;
    std::vector<State> states_;      // by layer
    std::vector<bool> state_fresh_;  // of this graph
};

}  // namespace sluice::exec
