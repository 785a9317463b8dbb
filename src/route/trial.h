// Owns: whether acting on guesses is worth it in this run, found out by doing so for a few tokens now and then: what
// `--prefetch auto` and `--predict-prefetch auto` go by.
// Keeps: a function of the tokens' measured times alone, without a clock of its own; guesses are acted on only while
// what that has lost, by the tokens without them, stays below kMostLoss of the time of all tokens. Before that shows,
// one token can lose what guesses can do to it.
#pragma once

#include <cstdint>

namespace sluice::route {

// Times are of any unit, the same for all.
class Trial {
  public:
    struct Token {
        double cost = 0;     // standing still for reads, and making guesses
        double time = 0;     // of the whole token
        bool acted = false;  // a guess has led to anything
    };
    struct Told {
        uint64_t tokens = 0, tokens_on = 0;
        uint64_t trials = 0;
        uint64_t won = 0, ended = 0;  // times that guesses were adopted, and given up again
        bool nothing_to_do = false;   // the last trial's guesses led to nothing
    };

    // Whether the next token acts on guesses.
    [[nodiscard]] bool on() const { return on_; }
    // A token was computed as on() said.
    void token(const Token& t);
    [[nodiscard]] const Told& told() const { return told_; }
    // Of tokens with and without, that were judged last; 0: there were none.
    [[nodiscard]] double cost_on() const { return with_.cost.mean; }
    [[nodiscard]] double cost_off() const { return without_.cost.mean; }

    static constexpr double kMostLoss = 0.01;   // of the time
    static constexpr uint32_t kWindow = 8;      // tokens on, or off, in a row
    static constexpr uint32_t kFirstRest = 64;  // tokens before a trial; doubled after each one that is lost
    static constexpr uint32_t kLongestRest = 4096;

  private:
    static constexpr double kEnough = kWindow / 2;               // samples of a kind
    static constexpr uint32_t kPairs = 8;                        // windows on and off in a trial, at most
    static constexpr uint32_t kLeastHold = 32, kMostHold = 256;  // tokens on, before some without for comparison
    static constexpr double kLeastGain = 0.01;                   // of a token's time
    static constexpr double kRemembers = 2048;                   // tokens, by kMostLoss

    enum class Stage : uint8_t { resting, trying, won };
    // Mean and scatter of samples.
    struct Samples {
        double n = 0, mean = 0, squares = 0;
        void add(double x) {
            const double d = x - mean;
            mean += d / ++n;
            squares += d * (x - mean);
        }
        [[nodiscard]] double variance() const { return n < 2 ? 0 : squares / (n - 1); }
        [[nodiscard]] double of_mean() const { return n < 2 ? 0 : variance() / n; }
    };
    struct Side {
        Samples cost, time;
    };

    [[nodiscard]] bool may() const;
    [[nodiscard]] double gain() const { return without_.cost.mean - with_.cost.mean; }
    [[nodiscard]] double doubt() const;
    [[nodiscard]] bool slower() const;
    void begin_trial();
    void begin_window(bool on);
    void window_over();
    void judge();
    void lose(uint32_t rest);

    Stage stage_ = Stage::resting;
    bool on_ = false;
    bool window_on_ = false;  // the window at hand
    uint32_t in_window_ = 0;  // tokens of it so far, of its kind
    uint32_t windows_ = 0;    // of the trial, finished
    uint32_t rest_ = kFirstRest, next_rest_ = 2 * kFirstRest;
    uint32_t hold_ = kLeastHold;
    bool acted_ = false;        // in this trial
    bool last_was_on_ = false;  // the token before
    bool adopted_ = false;
    Side with_, without_;
    double recent_ = 0, level_ = 0, scatter_ = 0;  // of cost while it is won: lately, and when that was last compared
    double base_ = 0, typical_ = 0;                // cost without guesses, and time, of tokens lately
    double time_ = 0, lost_ = 0, worst_ = 0;       // old ones count less; worst_: of one token
    Told told_;
};

}  // namespace sluice::route
