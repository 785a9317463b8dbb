#include "route/scores.h"

#include <algorithm>

namespace sluice::route {

const char* name(Predictor p) {
    switch (p) {
        case Predictor::stale1:
            return "stale gate";
        case Predictor::stale2:
            return "stale gate, 2 layers ahead";
        case Predictor::stale4:
            return "stale gate, 4 layers ahead";
        case Predictor::trained:
            return "trained";
        case Predictor::previous:
            return "previous token";
        case Predictor::popular:
            return "popularity";
        case Predictor::attention:
            return "state before attention";
        case Predictor::control:
            return "control";
    }
    return "";
}

int depth(Predictor p) {
    switch (p) {
        case Predictor::stale1:
        case Predictor::trained:
            return 1;
        case Predictor::stale2:
            return 2;
        case Predictor::stale4:
            return 4;
        default:
            return 0;
    }
}

void Score::add(const Score& o) {
    routings += o.routings;
    whole += o.whole;
    slots += o.slots;
    hits += o.hits;
    missing += o.missing;
    missing_named += o.missing_named;
    missing_in_time += o.missing_in_time;
    absent += o.absent;
    absent_chosen += o.absent_chosen;
    for (size_t i = 0; i < kUnranked; ++i) unranked[i] += o.unranked[i];
}

void Scores::score(Predictor p, size_t set, const Guess& guess, const Chosen& choice) {
    Score& s = sets_[set][index(p)];
    const size_t n = std::min(guess.experts.size(), choice.experts.size());
    const auto named = guess.experts.first(n);
    ++s.routings;
    s.slots += choice.experts.size();
    uint64_t hits = 0;
    int64_t reads = 0;  // of the guess's absent ones, up to the one at hand
    for (size_t i = 0; i < n; ++i) {
        const auto at = std::find(choice.experts.begin(), choice.experts.end(), named[i]);
        const bool right = at != choice.experts.end();
        hits += right ? 1 : 0;
        const bool absent = i < guess.absent.size() && guess.absent[i] != 0;
        if (absent) {
            ++s.absent;
            ++reads;
            s.absent_chosen += right ? 1 : 0;
        }
        if (right && choice.missing[static_cast<size_t>(at - choice.experts.begin())] != 0) {
            ++s.missing_named;
            // What was there when it was named, and is not any more, only had to be kept.
            if (!absent || (choice.read > 0 && reads * choice.read <= guess.idle)) ++s.missing_in_time;
        }
        ranks_[index(p)].note(i, right);
        if (i >= guess.confidence.size()) continue;
        const float said = std::clamp(guess.confidence[i], 0.0F, 1.0F);
        Bin& bin = bins_[index(p)][std::min(kBins - 1, static_cast<size_t>(said * static_cast<float>(kBins)))];
        ++bin.said;
        bin.came += right ? 1 : 0;
        bin.confidence += static_cast<double>(said);
    }
    s.hits += hits;
    s.whole += hits == choice.experts.size() ? 1 : 0;
    s.missing += static_cast<uint64_t>(
        std::count_if(choice.missing.begin(), choice.missing.end(), [](uint8_t m) { return m != 0; }));
}

void Scores::not_ranked(Predictor p, size_t set, Unranked why) {
    ++sets_[set][index(p)].unranked[static_cast<size_t>(why)];
}

void Scores::spent(Predictor p, Nanos time) {
    Cost& c = costs_[index(p)];
    c.time += time;
    ++c.guesses;
}

void Scores::compared(std::span<const int32_t> named, std::span<const int32_t> exact, Nanos time) {
    ++exact_.guesses;
    exact_.slots += exact.size();
    for (const int32_t e : exact) exact_.agreed += std::find(named.begin(), named.end(), e) != named.end() ? 1 : 0;
    exact_.time += time;
}

Score Scores::total(Predictor p) const {
    Score sum;
    for (const auto& set : sets_) sum.add(set[index(p)]);
    return sum;
}

double Scores::cost(Predictor p) const {
    const Cost& c = costs_[index(p)];
    return c.guesses == 0 ? -1 : static_cast<double>(c.time) / static_cast<double>(c.guesses);
}

}  // namespace sluice::route
