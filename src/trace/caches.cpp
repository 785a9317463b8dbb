#include "trace/caches.h"

#include <algorithm>

#include "trace/json_values.h"

namespace sluice::trace {
namespace {

bool is_of(const Json& cache, int64_t model) {
    const Measure m = measure_in(cache, "model");
    return m.known() && m.value() == model;
}

}  // namespace

const Json* newest_cache(const Book& book, int64_t model) {
    const auto it =
        std::find_if(book.caches.rbegin(), book.caches.rend(), [&](const Json& c) { return is_of(c, model); });
    return it == book.caches.rend() ? nullptr : &*it;
}

const Json* first_cache(const Book& book, int64_t model) {
    const auto it =
        std::find_if(book.caches.begin(), book.caches.end(), [&](const Json& c) { return is_of(c, model); });
    return it == book.caches.end() ? nullptr : &*it;
}

bool one_cache_in_decode(const Book& book, int64_t model) {
    const Json* newest = newest_cache(book, model);
    if (newest == nullptr) return false;
    const auto now = static_cast<double>(measure_in(*newest, "bytes").or_zero());
    const auto rows = static_cast<int64_t>(book.of(Phase::decode).rows);
    // Backwards: each line holds until the one after it.
    int64_t until = rows;
    for (auto it = book.caches.rbegin(); it != book.caches.rend() && until > 0; ++it) {
        if (!is_of(*it, model)) continue;
        const auto then = static_cast<double>(measure_in(*it, "bytes").or_zero());
        const int64_t from = measure_in(*it, "after_decode").or_zero();
        if (from < until && (then > now * kSameCache || now > then * kSameCache)) return false;
        until = std::min(until, from);
    }
    return true;
}

}  // namespace sluice::trace
