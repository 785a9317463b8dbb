#include "exec/own_memory.h"

#include <algorithm>

#include "base/bytes.h"

namespace sluice::exec {
namespace {

constexpr uint64_t kNumber = sizeof(float);
// Nodes of a block by the size of their rows: gate, up, what becomes of both (a clamp, a scale, the activation); down,
// its scale, the weighted row, the sum of ranks.
constexpr uint64_t kInner = 6, kOuter = 4;

uint64_t row_bytes(const model::ExpertSet& set) {
    uint64_t inner = 0, outer = 0;
    for (const model::ExpertTensor& t : set.tensors) {
        if (t.component == model::Component::down) {
            outer = std::max(outer, t.ne1);
        } else {
            inner = std::max(inner, t.ne1);
        }
    }
    return checked_mul(kInner * kNumber, inner).value_or(UINT64_MAX / 2) +
           checked_mul(kOuter * kNumber, outer).value_or(UINT64_MAX / 2);
}

}  // namespace

uint64_t own_memory_need(const model::GgufIndex& index, const model::Geometry& geometry, uint64_t tokens) {
    uint64_t ranks = 0, shared = 0;
    for (const model::ExpertSet& set : geometry.sets) {
        const uint64_t row = row_bytes(set);
        ranks = std::max(ranks, checked_mul(row, std::max(1U, set.n_used)).value_or(UINT64_MAX));
        const model::TensorEntry* up = index.find(fmt::format("blk.{}.ffn_up_shexp.weight", set.layer));
        if (up != nullptr && !set.tensors.empty())
            shared = std::max(shared, checked_mul(kInner * kNumber, up->ne[1]).value_or(UINT64_MAX / 2) +
                                          checked_mul(kOuter * kNumber, up->ne[0]).value_or(UINT64_MAX / 2));
    }
    const auto of = [&](uint64_t per_token) {
        return std::min<uint64_t>(kOwnBytes, checked_mul(per_token, tokens).value_or(UINT64_MAX));
    };
    return of(ranks) + of(shared);
}

}  // namespace sluice::exec
