// Owns: what a decode that fails or is cancelled leaves behind, for every kind of memory that llama.cpp has: nothing.
// The reference is stock llama.cpp in the same process, before Sluice starts.
#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "backend/device.h"
#include "backend/model_state.h"
#include "base/log.h"
#include "engine/decoder.h"
#include "engine/workload.h"
#include "io/unreliable_engine.h"
#include "model/geometry.h"
#include "tests/allocated.h"

namespace sluice::engine {
namespace {

// A copy would point into the one it was made from.
static_assert(!std::is_copy_constructible_v<Decoder> && !std::is_move_constructible_v<Decoder> &&
              !std::is_copy_assignable_v<Decoder> && !std::is_move_assignable_v<Decoder>);

struct Kind {
    const char* model;
    const char* memory;  // of what kind
    int prompt, ubatch;
    bool recurrent;
    bool restores = true;  // a failed sequence; otherwise it is emptied
};
// Windows are forgotten only where their cache of at least 256 cells has gone round.
constexpr Kind kKinds[] = {
    {"qwen3moe-q4_0", "plain", 20, 8, false},
    {"gemma4-f16", "sliding_window", 290, 48, false},
    {"gpt-oss-mxfp4_moe", "sliding_window_too", 290, 48, false},
    {"llama4-q4_k_m", "chunked_window", 20, 8, false},
    {"qwen35moe-q4_k_m", "delta_net", 20, 8, true},
    {"nemotron_h_moe-f16", "mamba", 20, 8, true},
    {"lfm2moe-q4_0", "convolution", 20, 8, true},
    {"bailingmoe3-q8_0", "linear_attention", 20, 8, true},
    {"qwen4exp-q8_0", "hybrid_with_index", 20, 8, true},
    {"deepseek4-mxfp4_moe", "compressed", 20, 8, true, false},
};
constexpr int kDecode = 4;

std::string path_of(const Kind& kind) {
    const char* dir = std::getenv("SLUICE_TEST_MODELS");
    return std::string(dir != nullptr ? dir : ".") + "/" + kind.model + ".gguf";
}

Result<Workload> load(const Kind& kind) {
    return Workload::load(path_of(kind), {.prompt = kind.prompt, .decode = kDecode, .ubatch = kind.ubatch});
}

// The generation in steps that can be repeated; all logits, and digests of the state by the tokens that it has seen.
class Session {
  public:
    Session(llama_context* ctx, const Kind& kind) : ctx_(ctx), kind_(kind), decoder_(ctx) {}

    void begin() {
        llama_memory_clear(llama_get_memory(ctx_), true);
        const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx_)));
        left_.clear();
        for (int i = 0; i < kind_.prompt; ++i) left_.push_back((i * 7919 + 13) % n_vocab);
        logits.clear();
    }
    // Until all is done or a decode fails. `one_by_one`: a prompt's ubatches in a decode each.
    Decoded go_on(bool one_by_one = false) {
        Decoded d;
        const auto n_vocab = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx_))));
        while (logits.size() <= kDecode) {
            if (before_decode) before_decode();
            const size_t n =
                one_by_one ? std::min<size_t>(left_.size(), static_cast<size_t>(kind_.ubatch)) : left_.size();
            d = decoder_.decode(std::span(left_).first(n));
            left_.erase(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(d.committed));
            if (d.code != 0) return d;
            if (!left_.empty()) {
                digests[seen()] = digest();
                continue;
            }
            const float* l = llama_get_logits_ith(ctx_, -1);
            logits.emplace_back(l, l + n_vocab);
            left_.assign(1, static_cast<llama_token>(std::max_element(l, l + n_vocab) - l));
            digests[seen()] = digest();
        }
        return d;
    }
    [[nodiscard]] llama_pos seen() const { return llama_memory_seq_pos_max(llama_get_memory(ctx_), 0) + 1; }
    [[nodiscard]] uint64_t digest() const {
        const auto d = state_digest(ctx_);
        EXPECT_TRUE(d.ok());
        return d.ok() ? *d : 0;
    }
    [[nodiscard]] Decoder& decoder() { return decoder_; }
    std::function<void()> before_decode;
    std::vector<std::vector<float>> logits;
    std::map<llama_pos, uint64_t> digests;

  private:
    llama_context* ctx_;
    const Kind& kind_;
    Decoder decoder_;
    std::vector<llama_token> left_;
};

bool same(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
        if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
    }
    return true;
}

// By model, what stock computes.
std::map<std::string, std::vector<std::vector<float>>>& reference() {
    static std::map<std::string, std::vector<std::vector<float>>> r;
    return r;
}

std::shared_ptr<io::Unreliability> drive() {
    static auto d = std::make_shared<io::Unreliability>();
    return d;
}

// Says stop at its n-th question.
struct Patience {
    std::optional<uint64_t> limit;
    uint64_t questions = 0;
    static bool asked(void* self) {
        auto& p = *static_cast<Patience*>(self);
        ++p.questions;
        return p.limit && p.questions > *p.limit;
    }
};

// What stock llama.cpp itself makes of going back, asked before Sluice starts: by model.
struct StockFacts {
    bool same_digest = false, same_logits = false;  // after state was read out and put back at once
    llama_pos left_behind = 0;                      // tokens that a decode has added which was aborted
};
std::map<std::string, StockFacts>& stock_facts() {
    static std::map<std::string, StockFacts> f;
    return f;
}

void ask_stock(llama_context* ctx, const Kind& kind) {
    StockFacts& facts = stock_facts()[kind.model];
    Session session(ctx, kind);
    session.begin();
    std::vector<uint8_t> state;
    session.before_decode = [&] {
        if (session.logits.size() != 2) return;  // the prompt and a token
        const uint64_t before = session.digest();
        state.resize(llama_state_seq_get_size_ext(ctx, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY));
        llama_state_seq_get_data_ext(ctx, state.data(), state.size(), 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
        llama_state_seq_set_data_ext(ctx, state.data(), state.size(), 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
        facts.same_digest = session.digest() == before;
    };
    if (session.go_on().code == 0) facts.same_logits = same(session.logits, reference()[kind.model]);

    session.before_decode = nullptr;
    session.begin();
    if (session.go_on().code != 0) return;
    Patience none{.limit = 0};
    llama_set_abort_callback(ctx, Patience::asked, &none);
    const llama_pos seen = session.seen();
    llama_token token = 1;
    if (llama_decode(ctx, llama_batch_get_one(&token, 1)) == 2) facts.left_behind = session.seen() - seen;
    llama_set_abort_callback(ctx, nullptr, nullptr);
}

void start_with_little_cache(const Kind& kind) {
    const auto index = model::GgufIndex::open(path_of(kind));
    ASSERT_TRUE(index.ok()) << index.status().message();
    const auto geometry = model::derive_geometry(*index);
    ASSERT_TRUE(geometry.ok());
    Config c;
    c.cache_bytes = geometry->cycle_bytes * 5 / 4 + 64 * 1024;
    c.io_engine = IoEngine::pread;
    c.verbosity = Verbosity::error;
    std::string why;
    ASSERT_TRUE(start(c, &why)) << why;
}

// One of how many reads is tried. Long prompts have many of them.
uint64_t step(const Kind& kind) {
    return std::getenv("SLUICE_EVERY_READ") != nullptr ? 1 : kind.prompt > 100 ? 53 : 11;
}
// At how many moments a run is cancelled.
uint64_t moments(const Kind& kind) {
    return std::getenv("SLUICE_EVERY_READ") != nullptr ? 1000 : kind.prompt > 100 ? 20 : 60;
}

class TransactionTest : public ::testing::TestWithParam<Kind> {
  protected:
    void SetUp() override {
        drive()->plan();
        start_with_little_cache(GetParam());
        auto w = load(GetParam());
        ASSERT_TRUE(w.ok()) << w.status().message();
        workload_.emplace(std::move(*w));
        session_ = std::make_unique<Session>(workload_->context(), GetParam());
        llama_set_abort_callback(workload_->context(), Patience::asked, &patience_);
        session_->begin();
        ASSERT_EQ(session_->go_on(true).code, 0) << last_error();
        ASSERT_TRUE(same(session_->logits, want()));
        digests_ = session_->digests;
        session_->begin();
        digests_[0] = session_->digest();
    }
    const std::vector<std::vector<float>>& want() { return reference()[GetParam().model]; }

    // After a decode that ended early: as if it had never been, and the next one is right. Or, where there is no way
    // back, as if no token had ever been.
    void expect_undone_then_right(const Decoded& d, const std::string& where) {
        const llama_pos seen = session_->seen();
        if (GetParam().restores) {
            EXPECT_FALSE(d.lost) << where;
        } else {
            EXPECT_EQ(seen, 0) << where;
            EXPECT_EQ(d.committed, 0U) << where;
        }
        ASSERT_TRUE(digests_.contains(seen)) << where << ": " << seen << " tokens are no whole ubatches";
        EXPECT_EQ(session_->digest(), digests_[seen]) << where << ", " << seen << " tokens seen";
        EXPECT_EQ(backend::settle().leases, 0U) << where;
        lost_ += d.lost ? 1 : 0;
        if (d.lost) session_->begin();
        ASSERT_EQ(session_->go_on().code, 0) << where << ": " << last_error();
        ASSERT_TRUE(same(session_->logits, want())) << where << ", " << seen << " tokens seen";
        EXPECT_EQ(session_->digest(), digests_[session_->seen()]) << where;
    }

    std::optional<Workload> workload_;
    std::unique_ptr<Session> session_;
    std::map<llama_pos, uint64_t> digests_;
    Patience patience_;
    int lost_ = 0;
};

TEST_P(TransactionTest, AFailedReadAnywhereLeavesNoTrace) {
    std::map<llama_pos, int> failures;
    // By what is left, or was there before the decode that failed.
    llama_pos before = 0;
    session_->before_decode = [&] { before = session_->seen(); };
    for (uint64_t k = 0;; k += step(GetParam())) {
        drive()->plan();
        drive()->fail = k;
        drive()->fails = UINT64_MAX;
        session_->begin();
        const Decoded d = session_->go_on();
        const bool reached = drive()->failed > 0;
        drive()->plan();
        if (!reached) break;
        ASSERT_LT(d.code, 0) << "read " << k;
        EXPECT_NE(last_error(), "");
        ++failures[GetParam().restores ? session_->seen() : before];
        expect_undone_then_right(d, "read " + std::to_string(k));
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(failures.size(), 2U) << "in the prompt and in tokens";
    EXPECT_EQ(lost_ > 0, !GetParam().restores);
}

TEST_P(TransactionTest, NorDoesACancellation) {
    session_->begin();
    patience_ = {};
    ASSERT_EQ(session_->go_on().code, 0);
    const uint64_t questions = patience_.questions;
    std::map<llama_pos, int> cancelled;
    llama_pos before = 0;
    session_->before_decode = [&] { before = session_->seen(); };
    for (uint64_t q = 0; q < questions; q += std::max<uint64_t>(questions / moments(GetParam()), 1)) {
        patience_ = {.limit = q};
        session_->begin();
        const Decoded d = session_->go_on();
        patience_ = {};
        if (d.code == 0) continue;  // fewer questions, since the cache has more
        ASSERT_EQ(d.code, 2) << "question " << q;
        ++cancelled[GetParam().restores ? session_->seen() : before];
        expect_undone_then_right(d, "question " + std::to_string(q));
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(cancelled.size(), 2U);
    EXPECT_EQ(lost_ > 0, !GetParam().restores);
}

TEST_P(TransactionTest, OnlyRecurrentStateIsCopied) {
    const UndoCosts& costs = session_->decoder().costs();
    EXPECT_EQ(session_->decoder().recurrent(), GetParam().recurrent);
    EXPECT_EQ(session_->decoder().restores(), GetParam().restores);
    EXPECT_EQ(costs.copies > 0, GetParam().recurrent && GetParam().restores);
    if (costs.copies > 0) {
        std::printf("%s: %llu bytes and %.1f us for each ubatch\n", GetParam().model,
                    static_cast<unsigned long long>(costs.bytes / costs.copies),
                    static_cast<double>(costs.time) / 1e3 / static_cast<double>(costs.copies));
    }
}

INSTANTIATE_TEST_SUITE_P(Memory, TransactionTest, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.memory); });

// Why DeepSeek-V4 is emptied. When this fails, llama.cpp has learned it, and so can engine/decoder. What was put back
// lies in other cells besides: on some processors that changes the logits, on others it does not.
TEST(Stock, CannotTakeDeepSeek4Back) {
    const StockFacts& f = stock_facts().at("deepseek4-mxfp4_moe");
    EXPECT_TRUE(f.same_digest) << "of what it reads out";
    EXPECT_EQ(f.left_behind, 1) << "it does not cut what an aborted decode has added";
}

// Others it can: what was read out and put back at once changes nothing.
TEST(Stock, PutsRecurrentStateBackWhereItWas) {
    for (const Kind& kind : kKinds) {
        if (!kind.recurrent || !kind.restores) continue;
        const StockFacts& f = stock_facts().at(kind.model);
        EXPECT_TRUE(f.same_digest) << kind.model;
        EXPECT_TRUE(f.same_logits) << kind.model;
    }
}

// Two contexts of one model take turns at its slots, a block at a time. Who waits for a turn can be told to stop, even
// if the other one waits for a read that does not come.
TEST(Cancel, WhileAnotherContextHasTheBlock) {
    const Kind& kind = kKinds[0];
    drive()->plan();
    start_with_little_cache(kind);
    auto workload = load(kind);
    ASSERT_TRUE(workload.ok()) << workload.status().message();
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 64;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_model* model = const_cast<llama_model*>(llama_get_model(workload->context()));
    const std::unique_ptr<llama_context, decltype(&llama_free)> other(llama_init_from_model(model, params), llama_free);
    ASSERT_NE(other, nullptr);
    Session stuck(workload->context(), kind), waits(other.get(), kind);
    Patience patience;
    llama_set_abort_callback(other.get(), Patience::asked, &patience);
    waits.begin();
    llama_token token = 1;
    ASSERT_EQ(llama_decode(other.get(), llama_batch_get_one(&token, 1)), 0) << last_error();
    const uint64_t questions = patience.questions;

    struct Holder {
        std::atomic<bool> has_block{false}, give_up{false};
        // Asked in the thread that reads: the first read was asked for, and does not come.
        static bool asked(void* self) {
            auto& h = *static_cast<Holder*>(self);
            if (drive()->seen > 0) h.has_block = true;
            return h.give_up;
        }
    } holder;
    llama_set_abort_callback(workload->context(), Holder::asked, &holder);
    drive()->plan();
    drive()->stick = 0;
    stuck.begin();
    Decoded held;
    std::thread first([&] { held = stuck.go_on(); });
    while (!holder.has_block) std::this_thread::yield();
    // More questions than a whole decode has: it can only have been asked them while it waited.
    patience = {.limit = questions};
    waits.begin();
    EXPECT_EQ(llama_decode(other.get(), llama_batch_get_one(&token, 1)), 2) << last_error();
    EXPECT_GT(patience.questions, questions);
    holder.give_up = true;
    first.join();
    EXPECT_EQ(held.code, 2) << last_error();

    drive()->plan();
    patience = {};
    holder.give_up = false;
    EXPECT_EQ(backend::settle().leases, 0U);
    for (Session* s : {&waits, &stuck}) {
        s->begin();
        ASSERT_EQ(s->go_on().code, 0) << last_error();
        EXPECT_TRUE(same(s->logits, reference()[kind.model]));
    }
}

// How many decodes are cancelled: in the full set a thousand.
int cancellations() {
    return std::getenv("SLUICE_EVERY_READ") != nullptr ? 1000 : 500;
}

// Cancelled at random questions of the abort callback, one in ten while a read hangs. What counts is what really ended
// early. After each nothing is leased, memory is what it was, and the next answer is right.
TEST(Cancel, AThousandTimes) {
    const Kind& kind = kKinds[0];
    drive()->plan();
    start_with_little_cache(kind);
    auto workload = load(kind);
    ASSERT_TRUE(workload.ok()) << workload.status().message();
    Session session(workload->context(), kind);
    Patience patience;
    llama_set_abort_callback(workload->context(), Patience::asked, &patience);
    session.begin();
    ASSERT_EQ(session.go_on().code, 0);
    uint64_t reads = drive()->seen;

    std::mt19937_64 random(1);
    const int wanted = cancellations();
    constexpr int kWarm = 50;
    int cancelled = 0, tried = 0, while_hanging = 0;
    size_t in_use = 0;
    for (; cancelled < wanted && tried < 2 * wanted; ++tried) {
        // Of an undisturbed run, which the last one was.
        const uint64_t questions = patience.questions;
        drive()->plan();
        const bool hangs = tried % 10 == 0;
        if (hangs) drive()->stick = random() % std::max<uint64_t>(reads, 1);
        patience = {.limit = random() % questions};
        session.begin();
        const Decoded d = session.go_on();
        ASSERT_TRUE(d.code == 2 || d.code == 0) << last_error();
        cancelled += d.code == 2 ? 1 : 0;
        while_hanging += d.code == 2 && hangs && drive()->seen > *drive()->stick ? 1 : 0;
        const backend::InFlight held = backend::in_flight();
        ASSERT_LE(held.leases, held.reads);
        drive()->plan();
        ASSERT_EQ(backend::settle().leases, 0U) << "after cancellation " << cancelled;
        patience = {};
        session.begin();
        ASSERT_EQ(session.go_on().code, 0) << last_error();
        reads = drive()->seen;
        ASSERT_TRUE(same(session.logits, reference()[kind.model])) << "after cancellation " << cancelled;
        if (tried == kWarm) in_use = allocated();
        if (tried > kWarm) {
            ASSERT_LT(allocated(), in_use + 64 * 1024) << "after cancellation " << cancelled;
        }
    }
    EXPECT_EQ(cancelled, wanted) << "of " << tried;
    EXPECT_GT(while_hanging, wanted / 100);
}

}  // namespace
}  // namespace sluice::engine

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    sluice::set_log_sink([](sluice::LogLevel, const std::string&) {});
    llama_backend_init();
    if (!::testing::GTEST_FLAG(list_tests)) {
        using namespace sluice;
        using namespace sluice::engine;
        for (const Kind& kind : kKinds) {
            auto w = load(kind);
            if (!w.ok()) {
                std::fprintf(stderr, "%s\n", w.status().message().c_str());
                return 1;
            }
            Session session(w->context(), kind);
            session.begin();
            if (session.go_on().code != 0) return 1;
            reference()[kind.model] = session.logits;
            ask_stock(w->context(), kind);
        }
        backend::wrap_engines([](std::unique_ptr<io::Engine> inner) -> std::unique_ptr<io::Engine> {
            return std::make_unique<io::UnreliableEngine>(std::move(inner), drive());
        });
    }
    return RUN_ALL_TESTS();
}
