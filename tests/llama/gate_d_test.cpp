// What gate d concludes from the verdict on a drive. What it measures is asked of the program (gate_test.sh).
#include "engine/gate_d.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

namespace sluice::engine {
namespace {

TEST(GateD, AYesNeedsADriveThatLetsSomethingBeReadEarly) {
    machine::Verdict drive;
    machine::GateCheck check = early_reads_check("m.gguf", drive);
    EXPECT_EQ(check.outcome, machine::Outcome::unknown) << "only memory was met";
    EXPECT_NE(check.found.find("sluice probe m.gguf"), std::string::npos) << check.found;

    drive.derived.emplace();
    drive.derived->window = 0;
    check = early_reads_check("m.gguf", drive);
    EXPECT_EQ(check.outcome, machine::Outcome::no);
    EXPECT_NE(check.found.find("--predict-prefetch and --prefetch read nothing early"), std::string::npos);

    drive.derived->window = 2 * MiB;
    check = early_reads_check("m.gguf", drive);
    EXPECT_EQ(check.outcome, machine::Outcome::yes);
    EXPECT_NE(check.found.find("2.0 MiB"), std::string::npos) << check.found;

    check = early_reads_check("m.gguf", error(Code::not_found, "nobody has measured it"));
    EXPECT_EQ(check.outcome, machine::Outcome::unknown);
    EXPECT_NE(check.found.find("nobody has measured it"), std::string::npos);
}

// Tokens of one layer: each chooses two absent experts. Whoever is `good` names both in time, the others none.
route::Scores tokens(std::initializer_list<route::Predictor> good, std::initializer_list<route::Predictor> bad) {
    const std::vector<int32_t> chosen{1, 2}, wrong{7, 8};
    const std::vector<uint8_t> both{1, 1};
    route::Scores s(1);
    const auto guess = [&](route::Predictor p, const std::vector<int32_t>& experts) {
        s.score(p, 0, {.experts = experts, .confidence = {}, .absent = both, .idle = 1000},
                {.experts = chosen, .missing = both, .read = 100});
        s.spent(p, 10);
    };
    for (int t = 0; t < 10; ++t) {
        for (const route::Predictor p : good) guess(p, chosen);
        for (const route::Predictor p : bad) guess(p, wrong);
    }
    return s;
}

TEST(GateD, OnlyGuessesThatAnOptionActsOnAreJudged) {
    using enum route::Predictor;
    const route::TokenTimes times{.wait = 200, .idle = 1000, .read = 100, .tokens = 10};
    // Whoever only looks may be as right as it likes.
    const auto looking = tokens({attention, stale2, stale4, popular, control}, {stale1, previous});
    machine::GateCheck check = guesses_check("25 %", looking, times);
    EXPECT_EQ(check.outcome, machine::Outcome::no);
    EXPECT_EQ(check.found.find("attention"), std::string::npos) << check.found;
    EXPECT_EQ(check.found.find("2 layers"), std::string::npos) << check.found;

    check = guesses_check("25 %", tokens({stale1}, {previous}), times);
    EXPECT_EQ(check.outcome, machine::Outcome::yes);
    EXPECT_TRUE(check.found.starts_with("stale gate (--predict-prefetch): ")) << check.found;
    EXPECT_EQ(best_guesses(tokens({previous}, {stale1}), times), previous);
    check = guesses_check("25 %", tokens({trained}, {stale1, previous}), times);
    EXPECT_EQ(check.outcome, machine::Outcome::yes);
    EXPECT_TRUE(check.found.starts_with("trained (--predict-prefetch --predict-model): ")) << check.found;

    EXPECT_EQ(best_guesses(tokens({attention, control}, {}), times), std::nullopt);
    EXPECT_EQ(guesses_check("25 %", tokens({attention, control}, {}), times).outcome, machine::Outcome::unknown);
    EXPECT_EQ(guesses_check("25 %", tokens({stale1}, {}), {}).outcome, machine::Outcome::unknown);
}

TEST(GateD, ActedRunsSayYesOnlyWhereBothAreFaster) {
    const auto outcome = [](double off, double on, double on_again, double off_again) {
        return acted_check("25 %", "--predict-prefetch", {{{off, 0}, {on, 0}, {on_again, 0}, {off_again, 0}}}).outcome;
    };
    EXPECT_EQ(outcome(100, 90, 95, 96), machine::Outcome::yes);
    EXPECT_EQ(outcome(100, 110, 105, 104), machine::Outcome::no);
    EXPECT_EQ(outcome(100, 90, 97, 96), machine::Outcome::unknown);
    EXPECT_EQ(outcome(100, 100, 100, 100), machine::Outcome::unknown);
    const machine::GateCheck check =
        acted_check("25 %", "--prefetch 1", {{{20e6, 5e6}, {10e6, 1e6}, {11e6, 2e6}, {21e6, 6e6}}});
    EXPECT_EQ(check.name, "25 %, acted on");
    EXPECT_TRUE(check.found.starts_with("--prefetch 1: a token takes 10.00 and 11.00 ms with it")) << check.found;
}

}  // namespace
}  // namespace sluice::engine
