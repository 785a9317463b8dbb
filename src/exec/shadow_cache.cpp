#include "exec/shadow_cache.h"

#include <algorithm>

namespace sluice::exec {
namespace {

cache::SlotCache make_cache(const store::RecordStore& store, const cache::Layout& layout, cache::Policy policy,
                            uint32_t at_once) {
    std::vector<uint32_t> class_of_record, set_of_record, slots;
    for (RecordId r = 0; r < store.n_records(); ++r) {
        set_of_record.push_back(store.set_of(r));
        class_of_record.push_back(layout.class_of_set[store.set_of(r)]);
    }
    for (const cache::SizeClass& c : layout.classes) slots.push_back(c.n_slots);
    return {std::move(class_of_record), slots, policy, 2 * at_once, std::move(set_of_record)};
}

}  // namespace

void PassLog::block(uint32_t set, uint32_t tokens, bool prompt) {
    blocks_.push_back({set, tokens, prompt, uses_.size()});
}

ShadowCache::ShadowCache(const store::RecordStore& store, const cache::Layout& layout, cache::Policy policy,
                         uint32_t at_once)
    : cache_(make_cache(store, layout, policy, at_once)) {}

void ShadowCache::commit(const PassLog& pass) {
    for (size_t b = 0; b < pass.blocks_.size(); ++b) {
        const PassLog::Block& block = pass.blocks_[b];
        const size_t end = b + 1 < pass.blocks_.size() ? pass.blocks_[b + 1].first_use : pass.uses_.size();
        cache_.visit(block.set, block.tokens, block.prompt);
        records_.clear();
        for (size_t u = block.first_use; u < end; ++u) {
            cache_.use_by(pass.uses_[u].record, pass.uses_[u].age);
            records_.push_back(pass.uses_[u].record);
        }
        std::sort(records_.begin(), records_.end());
        records_.erase(std::unique(records_.begin(), records_.end()), records_.end());
        // Those that are there first, so that they do not make room for the others.
        std::stable_partition(records_.begin(), records_.end(), [&](RecordId r) { return holds(r); });
        const cache::Seat seat = block.prompt ? cache::Seat::guest : cache::Seat::member;
        size_t leased = 0;
        for (size_t i = 0; i < records_.size(); ++i) {
            if (cache_.lease(records_[i], seat) == cache::kNoSlot) {  // the block does not fit: rounds
                for (; leased < i; ++leased) cache_.release(records_[leased]);
                (void)cache_.lease(records_[i], seat);
            }
            if (seat == cache::Seat::member) cache_.keep(records_[i]);
        }
        for (; leased < records_.size(); ++leased) cache_.release(records_[leased]);
    }
}

}  // namespace sluice::exec
