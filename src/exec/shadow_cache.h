// Owns: which experts a cache of a fixed size would hold, had it only ever been asked for what was computed.
// Keeps: a function of its making and of the passes committed so far: neither the drive, nor predictions, nor memory
// pressure, nor passes that failed or were stopped change it. Between commits it does not change at all.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "cache/layout.h"
#include "cache/slot_cache.h"
#include "store/record_store.h"

namespace sluice::exec {

// What the blocks of a pass through the model chose, while it is not over. Memory is reused.
class PassLog {
  public:
    void begin() {
        blocks_.clear();
        uses_.clear();
    }
    // The block of `set` comes, over so many tokens.
    void block(uint32_t set, uint32_t tokens, bool prompt);
    // Of that block: a token, after which `age` more come, uses the record.
    void use(RecordId record, uint32_t age) { uses_.push_back({record, age}); }

  private:
    friend class ShadowCache;
    struct Block {
        uint32_t set = 0, tokens = 0;
        bool prompt = false;
        size_t first_use = 0;
    };
    struct Use {
        RecordId record = 0;
        uint32_t age = 0;
    };
    std::vector<Block> blocks_;
    std::vector<Use> uses_;
};

// Not thread-safe.
class ShadowCache {
  public:
    // As the real cache of this layout is made; `at_once`: experts that a layer wants at once.
    ShadowCache(const store::RecordStore& store, const cache::Layout& layout, cache::Policy policy, uint32_t at_once);

    [[nodiscard]] bool holds(RecordId record) const { return cache_.find(record) != cache::kNoSlot; }
    // The pass was computed to its end: in its order, each block's records are used, leased and given back.
    void commit(const PassLog& pass);

  private:
    cache::SlotCache cache_;
    std::vector<RecordId> records_;  // of the block at hand
};

}  // namespace sluice::exec
