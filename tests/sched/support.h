// Owns: a small model on a simulated device, for tests of the rooms above the store.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "io/sim_engine.h"
#include "sched/fetcher.h"

namespace sluice::sched {

// A small model that exists only as bytes of a simulated device: two expert layers of different shape, experts at
// places that no alignment knows of.
class SimulatedModel : public ::testing::Test {
  protected:
    SimulatedModel() {
        uint64_t at = 777;
        for (int layer = 0; layer < 2; ++layer) {
            model::ExpertSet set;
            set.layer = layer;
            set.group = "exps";
            set.n_expert = kExperts;
            for (const model::Component c : {model::Component::gate, model::Component::up, model::Component::down}) {
                model::ExpertTensor t;
                t.component = c;
                t.offset = at;
                t.bytes_per_expert = layer == 0 ? 1000 : 5003;
                at += t.bytes_per_expert * kExperts + 33;
                set.tensors.push_back(t);
            }
            geometry_.sets.push_back(set);
        }
        geometry_.n_expert_used = 2;
        contents_.resize(at + 100);
        std::mt19937 random(7);
        for (std::byte& b : contents_) b = static_cast<std::byte>(random());
        file_ = io::File::simulated("model.gguf", contents_.size(), 512, 512);
    }

    std::unique_ptr<Fetcher> make(uint64_t budget, const io::SimOptions& sim = {}, bool convert = false,
                                  const DeviceModel& device = {}) {
        engine_ = std::make_unique<io::SimEngine>(clock_, sim);
        engine_->set_contents(file_, contents_);
        const io::File* files[] = {&file_};
        store_ = std::make_unique<store::RecordStore>(store::RecordStore::over(geometry_, files));
        Fetcher::Options options;
        options.slots.budget = budget;
        options.slots.min_slots = 2;
        options.reads.device = device;
        if (convert) {
            options.slots.converted = {{true, false, true}, {false, true, false}};
            options.slots.convert = [](uint32_t, uint32_t, const std::byte* raw, std::byte* slot, uint64_t bytes) {
                for (uint64_t i = 0; i < bytes; ++i) slot[i] = raw[i] ^ std::byte{0xFF};
            };
        }
        converted_ = options.slots.converted;
        auto fetcher = Fetcher::create(*store_, *engine_, clock_, std::move(options));
        EXPECT_TRUE(fetcher.ok()) << fetcher.status().message();
        return std::move(*fetcher);
    }

    // The bytes in the slot are those of the file, in the form that slots have.
    void expect_right(const Fetcher& fetcher, RecordId r) {
        const uint32_t set = store_->set_of(r);
        for (uint32_t c = 0; c < 3; ++c) {
            const store::Extent e = store_->extent(r, c);
            const bool converted = !converted_.empty() && converted_[set][c];
            const std::byte* got = fetcher.data(r, c);
            for (uint64_t i = 0; i < e.bytes; ++i) {
                const std::byte want = contents_[e.offset + i] ^ (converted ? std::byte{0xFF} : std::byte{0});
                ASSERT_EQ(got[i], want) << "record " << r << " component " << c << " byte " << i;
            }
        }
    }

    // One checksum per component of each record, as the store keeps them.
    std::vector<uint32_t> right_sums() const {
        std::vector<uint32_t> sums;
        for (RecordId r = 0; r < store_->n_records(); ++r) {
            for (uint32_t c = 0; c < store_->n_components(store_->set_of(r)); ++c) {
                const store::Extent e = store_->extent(r, c);
                sums.push_back(crc32c(std::span(contents_).subspan(e.offset, e.bytes)));
            }
        }
        return sums;
    }

    static constexpr uint32_t kExperts = 6;
    model::Geometry geometry_;
    std::vector<std::byte> contents_;
    io::File file_;
    VirtualClock clock_;
    std::unique_ptr<io::SimEngine> engine_;
    std::unique_ptr<store::RecordStore> store_;
    std::vector<std::vector<bool>> converted_;
};

inline constexpr ComponentMask kAll = 7;

}  // namespace sluice::sched
