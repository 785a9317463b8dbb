// Owns: what a session with streaming must do besides computing the same logits: read little at load, fail cleanly,
// recover, be cancelled, be shared. Reference logits come from stock llama.cpp in the same process, before Sluice
// starts.
#include <fcntl.h>
#include <ggml-backend.h>
#include <gtest/gtest.h>
#include <llama.h>
#include <sluice/sluice.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "machine/usage.h"
#include "model/geometry.h"
#include "trace/record_file.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string models() {
    return std::getenv("SLUICE_TEST_MODELS") != nullptr ? std::getenv("SLUICE_TEST_MODELS") : ".";
}
std::string moe_model() {
    return models() + "/qwen3moe-q4_0.gguf";
}

using Model = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

Model load(const std::string& path, llama_load_mode mode = LLAMA_LOAD_MODE_MMAP, bool repack = false,
           llama_lazy_mode lazy = LLAMA_LAZY_MODE_AUTO) {
    llama_model_params params = llama_model_default_params();
    params.use_extra_bufts = repack;
    params.n_gpu_layers = 0;
    params.load_mode = mode;
    params.lazy_mode = lazy;
    return {llama_model_load_from_file(path.c_str(), params), llama_model_free};
}

Context context(llama_model* model, int threads = 1, ggml_backend_sched_eval_callback cb = nullptr) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_batch = params.n_ubatch = 64;
    params.n_threads = params.n_threads_batch = threads;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.cb_eval = cb;
    return {llama_init_from_model(model, params), llama_free};
}

std::vector<llama_token> prompt(const llama_model* model, int n, int salt) {
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<llama_token> tokens;
    for (int i = 0; i < n; ++i) tokens.push_back((i * 7919 + 13 + salt * 101) % n_vocab);
    return tokens;
}

// Logits after a prompt; empty if decoding failed, with the code in `rc`.
std::vector<float> logits_after(llama_context* ctx, int n, int salt, int* rc = nullptr) {
    const llama_model* model = llama_get_model(ctx);
    llama_memory_clear(llama_get_memory(ctx), true);
    std::vector<llama_token> tokens = prompt(model, n, salt);
    const int code = llama_decode(ctx, llama_batch_get_one(tokens.data(), n));
    if (rc != nullptr) *rc = code;
    if (code != 0) return {};
    const float* l = llama_get_logits_ith(ctx, -1);
    return {l, l + llama_vocab_n_tokens(llama_model_get_vocab(model))};
}

// What stock llama.cpp computes, made once before any test starts Sluice.
struct Reference {
    std::vector<float> salt[4];
    std::vector<float> dense_model;
    std::vector<float> ple_model;
};
Reference& reference() {
    static Reference r;
    return r;
}

void start_with(Config config) {
    std::string error;
    if (config.verbosity == Verbosity::info) config.verbosity = Verbosity::error;
    ASSERT_TRUE(start(config, &error)) << error;
}

uint64_t one_expert_slot() {
    const auto index = model::GgufIndex::open(moe_model());
    const auto geometry = model::derive_geometry(*index);
    uint64_t slot = 0;
    for (const auto& t : geometry->sets[0].tensors) slot += (t.bytes_per_expert + 2 * 4096) / 4096 * 4096;
    return slot;
}

Config tiny_cache() {
    Config c;
    c.cache_bytes = 3 * one_expert_slot();
    return c;
}

// A private copy of the model that a test may damage.
class Copy {
  public:
    Copy() : path_(fs::temp_directory_path() / ("sluice-session-" + std::to_string(getpid()) + ".gguf")) {
        fs::copy_file(moe_model(), path_, fs::copy_options::overwrite_existing);
    }
    ~Copy() {
        std::error_code ignored;
        fs::remove(path_, ignored);
    }
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;
    [[nodiscard]] std::string path() const { return path_.string(); }
    // Cuts the file; restore() puts the bytes back into the same file.
    void truncate(uint64_t size) const { ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(size)), 0); }
    void restore() const {
        std::ifstream in(moe_model(), std::ios::binary);
        std::fstream out(path_, std::ios::binary | std::ios::in | std::ios::out);
        out << in.rdbuf();
    }

  private:
    fs::path path_;
};

TEST(Session, EveryWayOfReadingGivesTheSameLogits) {
    std::vector<Config> configs;
    for (const DenseWeights d : {DenseWeights::anon, DenseWeights::warm, DenseWeights::mmap}) {
        for (const IoEngine e : {IoEngine::automatic, IoEngine::pread, IoEngine::mmap}) {
            for (const bool direct : {true, false}) {
                Config c = tiny_cache();
                c.dense_weights = d;
                c.io_engine = e;
                c.direct_io = direct;
                c.io_threads = direct ? 3 : 1;
                configs.push_back(c);
            }
        }
    }
    for (const Config& c : configs) {
        start_with(c);
        const Model model = load(moe_model());
        ASSERT_NE(model, nullptr);
        const Context ctx = context(model.get());
        ASSERT_NE(ctx, nullptr);
        EXPECT_EQ(logits_after(ctx.get(), 50, 0), reference().salt[0]);
        EXPECT_GT(stats().prefill.bytes_read, 0U);
    }
}

TEST(Session, ObservingNodesChangesNothing) {
    start_with(tiny_cache());
    const Model model = load(moe_model());
    const auto watch = [](ggml_tensor* t, bool ask, void*) {
        // Asking for nodes in the middle of a block cuts the graph there.
        return ask ? std::strncmp(t->name, "ffn_moe_topk", 12) == 0 || std::strncmp(t->name, "ffn_moe_up", 10) == 0 ||
                         std::strncmp(t->name, "ffn_moe_down", 12) == 0
                   : true;
    };
    const Context ctx = context(model.get(), 1, watch);
    EXPECT_EQ(logits_after(ctx.get(), 50, 0), reference().salt[0]);
}

TEST(Session, ATruncatedFileFailsTheRequestAndItsRestoredSelfIsRightAgain) {
    const Copy copy;
    const auto index = model::GgufIndex::open(copy.path());
    ASSERT_TRUE(index.ok());
    const uint64_t size = index->files()[0].size;
    const uint64_t data = index->files()[0].data_offset;
    start_with(tiny_cache());
    const Model model = load(copy.path());
    const Context ctx = context(model.get());
    ASSERT_EQ(logits_after(ctx.get(), 50, 0), reference().salt[0]);
    for (const uint64_t cut :
         {uint64_t{0}, uint64_t{1}, data - 1, data, data + (size - data) / 3, size / 2, size - 5000}) {
        copy.truncate(cut);
        int rc = 0;
        EXPECT_TRUE(logits_after(ctx.get(), 50, 1, &rc).empty()) << "cut at " << cut;
        EXPECT_LT(rc, 0);
        const std::string why = last_error();
        EXPECT_NE(why.find(copy.path()), std::string::npos) << why;
        EXPECT_NE(why.find("offset"), std::string::npos) << why;
        EXPECT_NE(why.find("expert"), std::string::npos) << why;
        copy.restore();
        EXPECT_EQ(logits_after(ctx.get(), 50, 1), reference().salt[1]) << "after cut at " << cut;
        EXPECT_EQ(last_error(), "");
    }
}

TEST(Session, ADeletedModelGoesOnRunning) {
    const Copy copy;
    start_with(tiny_cache());
    const Model model = load(copy.path());
    const Context ctx = context(model.get());
    fs::remove(copy.path());
    EXPECT_EQ(logits_after(ctx.get(), 50, 2), reference().salt[2]);
}

TEST(Session, ACancelledDecodeLeavesNothingBehind) {
    start_with(tiny_cache());
    const Model model = load(moe_model());
    const Context ctx = context(model.get());
    for (int after = 0; after < 40; after += 3) {
        int calls = 0;
        struct Limit {
            int* calls;
            int after;
        } limit{&calls, after};
        llama_set_abort_callback(
            ctx.get(),
            [](void* self) { return ++*static_cast<Limit*>(self)->calls > static_cast<Limit*>(self)->after; }, &limit);
        int rc = 0;
        (void)logits_after(ctx.get(), 50, 3, &rc);
        EXPECT_EQ(rc, 2) << "cancelled after " << after;
        llama_set_abort_callback(ctx.get(), nullptr, nullptr);
        EXPECT_EQ(logits_after(ctx.get(), 50, 3), reference().salt[3]);
    }
}

TEST(Session, TwoContextsAtOnceShareTheCacheAndDoNotDisturbEachOther) {
    start_with(tiny_cache());
    const Model model = load(moe_model());
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&, t] {
            const Context ctx = context(model.get());
            for (int i = 0; i < 6; ++i) {
                const int salt = (i + t) % 4;
                if (logits_after(ctx.get(), 50, salt) != reference().salt[salt]) ++wrong;
            }
        });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong.load(), 0);
}

TEST(Session, TheSameModelLoadedTwiceSharesOneCache) {
    start_with(tiny_cache());
    const Model a = load(moe_model());
    const Model b = load(moe_model());
    const Context ca = context(a.get());
    const Context cb = context(b.get());
    EXPECT_EQ(logits_after(ca.get(), 50, 0), reference().salt[0]);
    EXPECT_EQ(logits_after(cb.get(), 50, 1), reference().salt[1]);
    EXPECT_LE(stats().cache_bytes, *tiny_cache().cache_bytes);
}

TEST(Session, ALimitIsKeptFromWhenItIsSetUntilItIsLifted) {
    Config c;
    c.cache_bytes = 64 * MiB;
    start_with(c);
    const Model model = load(moe_model());
    const Context ctx = context(model.get());
    ASSERT_EQ(logits_after(ctx.get(), 50, 0), reference().salt[0]);
    ASSERT_GT(stats().experts_resident, 4U);
    set_cache_limit(4 * one_expert_slot());
    EXPECT_LE(stats().experts_resident, 4U) << "at once, while nothing is computed";
    EXPECT_EQ(logits_after(ctx.get(), 50, 1), reference().salt[1]);
    EXPECT_LE(stats().experts_resident, 4U);
    set_cache_limit(std::nullopt);
    EXPECT_EQ(logits_after(ctx.get(), 50, 2), reference().salt[2]);
    EXPECT_GT(stats().experts_resident, 4U);
}

// What this process takes now, and so much more.
uint64_t process_and(uint64_t more) {
    return machine::usage().rss.value() + more;
}

TEST(Session, TwoModelsShareOneNumber) {
    Config c;
    c.ram_bytes = process_and(256 * MiB);
    c.cache_ceil_bytes = 8 * one_expert_slot();
    start_with(c);
    const Model first = load(moe_model());
    ASSERT_NE(first, nullptr);
    const Context first_ctx = context(first.get());
    EXPECT_EQ(logits_after(first_ctx.get(), 50, 0), reference().salt[0]);
    const uint64_t alone = stats().experts_resident;
    EXPECT_EQ(alone, 8U);
    const Model second = load(models() + "/qwen3moe-q8_0.gguf");
    ASSERT_NE(second, nullptr);
    const Context second_ctx = context(second.get());
    EXPECT_FALSE(logits_after(second_ctx.get(), 50, 0).empty());
    EXPECT_EQ(logits_after(first_ctx.get(), 50, 1), reference().salt[1]);
    EXPECT_LE(stats().experts_resident, 8U) << "those of both";
    EXPECT_LE(machine::usage().rss.value(), *c.ram_bytes);
}

std::string& said() {
    static std::string s;
    return s;
}

TEST(Session, AContextThatCannotFitIsRefusedWithTheSumAndASmallerOneIsNot) {
    Config c;
    c.ram_bytes = process_and(128 * MiB);
    start_with(c);
    const Model model = load(moe_model());
    ASSERT_NE(model, nullptr);
    said().clear();
    set_log_sink([](LogLevel, const std::string& line) { said() += line + "\n"; });
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 1U << 22U;
    params.n_threads = 1;
    const uint64_t had = machine::usage().rss.value();
    const Context none(llama_init_from_model(model.get(), params), llama_free);
    set_log_sink(nullptr);
    EXPECT_EQ(none, nullptr);
    EXPECT_NE(said().find("llama.cpp wants a buffer of"), std::string::npos) << said();
    EXPECT_NE(said().find(": that is "), std::string::npos) << said();
    EXPECT_LE(machine::usage().rss.value(), had + 32 * MiB) << "before it is touched";
    const Context ctx = context(model.get());
    ASSERT_NE(ctx, nullptr);
    EXPECT_EQ(logits_after(ctx.get(), 50, 0), reference().salt[0]);
}

TEST(Session, AModelIsRefusedBeforeItsWeightsAreRead) {
    Config c;
    c.ram_bytes = 24 * MiB;
    start_with(c);
    EXPECT_EQ(load(moe_model()), nullptr);
}

TEST(Session, AModelWithoutExpertsIsLeftToStock) {
    start_with(tiny_cache());
    const Model model = load(models() + "/dense-f16.gguf");
    ASSERT_NE(model, nullptr);
    const Context ctx = context(model.get());
    reset_stats();
    EXPECT_EQ(logits_after(ctx.get(), 50, 0), reference().dense_model);
    EXPECT_EQ(stats().prefill.tokens, 0U);
}

TEST(Session, ATableThatLlamaReadsRowByRowStaysInTheFile) {
    const std::string path = models() + "/qwen4exp-f16.gguf";
    const auto index = model::GgufIndex::open(path);
    const model::TensorEntry* table = index->find("per_layer_token_embd.weight");
    ASSERT_NE(table, nullptr);
    start_with(Config());
    uint64_t loaded[2] = {};
    for (const bool lazy : {false, true}) {
        const uint64_t before = stats().dense_bytes;
        const Model model = load(path, LLAMA_LOAD_MODE_MMAP, false, lazy ? LLAMA_LAZY_MODE_ON : LLAMA_LAZY_MODE_OFF);
        ASSERT_NE(model, nullptr);
        loaded[lazy ? 1 : 0] = stats().dense_bytes - before;
        const Context ctx = context(model.get());
        EXPECT_EQ(logits_after(ctx.get(), 50, 0), reference().ple_model);
    }
    EXPECT_EQ(loaded[0] - loaded[1], table->bytes);
}

TEST(Session, LoadModesThatReadEverythingAreRefused) {
    start_with(tiny_cache());
    for (const llama_load_mode mode : {LLAMA_LOAD_MODE_NONE, LLAMA_LOAD_MODE_DIRECT_IO, LLAMA_LOAD_MODE_MLOCK}) {
        EXPECT_EQ(load(moe_model(), mode), nullptr) << llama_load_mode_name(mode);
    }
}

TEST(Session, ACacheThatHoldsNoExpertIsRefusedAtLoad) {
    Config c;
    c.cache_bytes = one_expert_slot() / 2;
    start_with(c);
    EXPECT_EQ(load(moe_model()), nullptr);
}

TEST(Session, StatisticsAddUp) {
    start_with(tiny_cache());
    const Model model = load(moe_model());
    const Context ctx = context(model.get());
    reset_stats();
    (void)logits_after(ctx.get(), 50, 0);
    std::vector<llama_token> token{5};
    for (int i = 0; i < 5; ++i) ASSERT_EQ(llama_decode(ctx.get(), llama_batch_get_one(token.data(), 1)), 0);
    const Stats s = stats();
    EXPECT_EQ(s.prefill.tokens, 50U);
    EXPECT_EQ(s.decode.tokens, 5U);
    const auto index = model::GgufIndex::open(moe_model());
    const auto g = model::derive_geometry(*index);
    EXPECT_EQ(s.decode.lookups, 5U * g->n_expert_used * g->sets.size());
    EXPECT_LE(s.decode.hits, s.decode.lookups);
    EXPECT_EQ(s.experts, g->n_records());
    EXPECT_GE(s.decode.bytes_physical, s.decode.bytes_read);
    EXPECT_LE(s.cache_bytes, *tiny_cache().cache_bytes);
}

TEST(Session, CountsOutliveTheModel) {
    start_with(tiny_cache());
    reset_stats();
    {
        const Model model = load(moe_model());
        const Context ctx = context(model.get());
        (void)logits_after(ctx.get(), 50, 0);
    }
    EXPECT_EQ(stats().prefill.tokens, 50U);
    EXPECT_GT(stats().cache_bytes, 0U);
    reset_stats();
    EXPECT_EQ(stats().prefill.tokens, 0U);
}

void drop_from_page_cache(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    fsync(fd);
    EXPECT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
}

// Decodes two batches of which nobody reads a result, and leaves.
void decode_and_exit(const std::string& record, bool on_another_thread) {
    Config config = tiny_cache();
    config.record = record;
    start_with(config);
    llama_model* model = load(moe_model()).release();
    llama_context* ctx = context(model).release();
    const auto decode = [&] {
        for (const int n : {8, 1}) {
            std::vector<llama_token> tokens = prompt(model, n, 0);
            if (llama_decode(ctx, llama_batch_get_one(tokens.data(), n)) != 0) _exit(3);
        }
    };
    if (on_another_thread) {
        std::thread(decode).join();
    } else {
        decode();
    }
    std::exit(0);
}

// A death test runs in a new process, which learns the path from the environment.
std::string record_of_leaver() {
    const std::string mine = fs::temp_directory_path() / ("sluice-leaver-" + std::to_string(getpid()));
    setenv("SLUICE_TEST_LEAVER", mine.c_str(), 0);
    return std::getenv("SLUICE_TEST_LEAVER");
}

void check_record_of_leaver(const std::string& path) {
    const auto record = trace::read_record(path);
    fs::remove(path);
    unsetenv("SLUICE_TEST_LEAVER");
    ASSERT_TRUE(record.ok()) << record.status().message();
    EXPECT_TRUE(record->ended);
    ASSERT_EQ(record->rows.size(), 2U);
    EXPECT_EQ(record->rows[0].tokens, trace::Measure(8));
    EXPECT_EQ(record->rows[1].tokens, trace::Measure(1));
}

TEST(SessionDeathTest, AHostThatLeavesWithoutReadingItsLastResultLosesNoRow) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const std::string record = record_of_leaver();
    EXPECT_EXIT(decode_and_exit(record, false), ::testing::ExitedWithCode(0), "");
    check_record_of_leaver(record);
}

TEST(SessionDeathTest, NorDoesOneThatComputedOnAnotherThread) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const std::string record = record_of_leaver();
    EXPECT_EXIT(decode_and_exit(record, true), ::testing::ExitedWithCode(0), "");
    check_record_of_leaver(record);
}

TEST(Session, LoadingReadsHeadersAndDenseWeightsOnly) {
    const std::string path = models() + "/wide-f16.gguf";
    const auto index = model::GgufIndex::open(path);
    ASSERT_TRUE(index.ok()) << index.status().message();
    const auto g = model::derive_geometry(*index);
    // What stock llama.cpp itself reads of the header, with its read-ahead.
    drop_from_page_cache(path);
    const uint64_t at_start = machine::usage().bytes_read.value();
    llama_model_params vocabulary = llama_model_default_params();
    vocabulary.vocab_only = true;
    llama_model_free(llama_model_load_from_file(path.c_str(), vocabulary));
    const uint64_t header = machine::usage().bytes_read.value() - at_start;
    const uint64_t allowed = g->dense_bytes * 101 / 100 + header;
    ASSERT_GT(g->expert_bytes, 2 * g->dense_bytes) << "the test model must be mostly experts";
    for (const DenseWeights d : {DenseWeights::anon, DenseWeights::warm}) {
        Config c;
        c.cache_bytes = 64 * MiB;
        c.dense_weights = d;
        start_with(c);
        drop_from_page_cache(path);
        const uint64_t before = machine::usage().bytes_read.value();
        const Model model = load(path);
        ASSERT_NE(model, nullptr);
        const uint64_t read = machine::usage().bytes_read.value() - before;
        EXPECT_LE(read, allowed) << "dense " << g->dense_bytes << ", experts " << g->expert_bytes;
        EXPECT_GE(read, g->dense_bytes / 2) << "this machine does not count reads; the test shows nothing";
    }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    if (!::testing::GTEST_FLAG(list_tests)) {
        using namespace sluice;
        const Model model = load(moe_model());
        const Model dense = load(models() + "/dense-f16.gguf");
        if (model == nullptr || dense == nullptr) {
            std::fprintf(stderr, "SLUICE_TEST_MODELS=%s lacks the test models\n", models().c_str());
            return 1;
        }
        const Context ctx = context(model.get());
        for (int salt = 0; salt < 4; ++salt) reference().salt[salt] = logits_after(ctx.get(), 50, salt);
        const Model ple = load(models() + "/qwen4exp-f16.gguf");
        const Context ple_ctx = context(ple.get());
        reference().ple_model = logits_after(ple_ctx.get(), 50, 0);
        const Context dense_ctx = context(dense.get());
        reference().dense_model = logits_after(dense_ctx.get(), 50, 0);
    }
    return RUN_ALL_TESTS();
}
