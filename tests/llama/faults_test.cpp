// Owns: what a failing drive does to a whole generation: every read of 64 tokens fails in every way, between the pread
// engine and the kernel. Reference tokens and logits come from stock llama.cpp in the same process, before Sluice
// starts. Keeps: one load of the model serves all of it, so that what a fault leaves behind would show in what follows.
#include <gtest/gtest.h>
#include <llama.h>
#include <sluice/sluice.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "io/engine.h"
#include "model/geometry.h"
#include "read_faults.h"
#include "store/scan.h"
#include "store/sums.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr int kPrompt = 9;
constexpr int kTokens = 64;

using Model = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

std::string original() {
    const char* dir = std::getenv("SLUICE_TEST_MODELS");
    return std::string(dir != nullptr ? dir : ".") + "/qwen3moe-q4_0.gguf";
}

Model load(const std::string& path) {
    llama_model_params params = llama_model_default_params();
    params.use_extra_bufts = false;
    params.n_gpu_layers = 0;
    return {llama_model_load_from_file(path.c_str(), params), llama_model_free};
}

Context context(llama_model* model) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 128;
    params.n_batch = params.n_ubatch = 32;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return {llama_init_from_model(model, params), llama_free};
}

// Logits of each step, the first of them after the prompt; the tokens are the best of each.
struct Generation {
    std::vector<std::vector<float>> logits;
    int code = 0;  // of the llama_decode that failed
};

class Generator {
  public:
    explicit Generator(llama_context* ctx) : ctx_(ctx) {}

    void begin() {
        llama_memory_clear(llama_get_memory(ctx_), true);
        done_ = {};
    }
    // Goes on until it has all tokens or one fails.
    const Generation& go_on() {
        const llama_model* model = llama_get_model(ctx_);
        const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
        done_.code = 0;
        while (done_.logits.size() <= kTokens) {
            std::vector<llama_token> batch;
            if (done_.logits.empty()) {
                for (int i = 0; i < kPrompt; ++i) batch.push_back((i * 7919 + 13) % n_vocab);
            } else {
                const std::vector<float>& last = done_.logits.back();
                batch.push_back(static_cast<llama_token>(std::max_element(last.begin(), last.end()) - last.begin()));
            }
            done_.code = llama_decode(ctx_, llama_batch_get_one(batch.data(), static_cast<int32_t>(batch.size())));
            if (done_.code != 0) break;
            const float* l = llama_get_logits_ith(ctx_, -1);
            done_.logits.emplace_back(l, l + n_vocab);
        }
        return done_;
    }
    const Generation& generate() {
        begin();
        return go_on();
    }

  private:
    llama_context* ctx_;
    Generation done_;
};

// Bit for bit, as far as it came.
bool same_so_far(const Generation& got, const Generation& want) {
    for (size_t i = 0; i < got.logits.size(); ++i) {
        if (std::memcmp(got.logits[i].data(), want.logits[i].data(), want.logits[i].size() * sizeof(float)) != 0)
            return false;
    }
    return true;
}
bool same(const Generation& got, const Generation& want) {
    return got.code == 0 && got.logits.size() == want.logits.size() && same_so_far(got, want);
}

Generation& reference() {
    static Generation g;
    return g;
}

// The model in a directory of its own, with checksums beside it.
class Copy {
  public:
    Copy() : dir_(fs::temp_directory_path() / ("sluice-faults-" + std::to_string(getpid()))) {
        fs::create_directories(dir_);
        fs::copy_file(original(), path(), fs::copy_options::overwrite_existing);
    }
    ~Copy() {
        std::error_code ignored;
        fs::remove_all(dir_, ignored);
    }
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;
    [[nodiscard]] std::string path() const { return (dir_ / "model.gguf").string(); }
    // What `sluice verify --write` does.
    void write_sums() const {
        const auto index = model::GgufIndex::open(path());
        const auto geometry = model::derive_geometry(*index);
        const auto store = store::RecordStore::open(*index, *geometry, {.store = "gguf"}, nullptr);
        ASSERT_TRUE(store.ok()) << store.status().message();
        auto engine = io::make_engine({});
        auto sums = store::compute_sums(*store, *engine->engine, nullptr);
        ASSERT_TRUE(sums.ok()) << sums.status().message();
        auto source = store::describe(*index, *geometry);
        const Status saved = store::save_sums(store::Files::system(), *index, {std::move(*source), std::move(*sums)});
        ASSERT_TRUE(saved.ok()) << saved.message();
    }

  private:
    fs::path dir_;
};

// One of how many reads fails.
uint64_t step() {
    return std::getenv("SLUICE_EVERY_READ") != nullptr ? 1 : 97;
}

struct Kind {
    const char* name;
    ReadFault fault;
    uint64_t once;   // as often as is made good
    bool harmless;   // however often it happens
    uint64_t first;  // read that suffers, so that kinds do not all meet the same ones
};
constexpr uint64_t kEver = UINT64_MAX;

class FaultsTest : public ::testing::TestWithParam<Kind> {
  protected:
    static void SetUpTestSuite() {
        copy_ = new Copy;
        copy_->write_sums();
        struct stat st = {};
        ASSERT_EQ(stat(copy_->path().c_str(), &st), 0);
        read_faults_watch(st.st_dev, st.st_ino);
        const auto index = model::GgufIndex::open(copy_->path());
        const auto geometry = model::derive_geometry(*index);
        Config c;
        c.io_engine = IoEngine::pread;
        c.io_threads = 1;
        c.verify_reads = VerifyReads::always;
        c.verbosity = Verbosity::error;
        c.cache_bytes = geometry->expert_bytes * 2 / 3;
        std::string error;
        ASSERT_TRUE(start(c, &error)) << error;
        model_ = new Model(load(copy_->path()));
        ASSERT_NE(*model_, nullptr);
        context_ = new Context(context(model_->get()));
        ASSERT_NE(*context_, nullptr);
    }
    static void TearDownTestSuite() {
        delete context_;
        delete model_;
        delete copy_;
    }

    static Copy* copy_;
    static Model* model_;
    static Context* context_;
};
Copy* FaultsTest::copy_ = nullptr;
Model* FaultsTest::model_ = nullptr;
Context* FaultsTest::context_ = nullptr;

TEST_P(FaultsTest, TokensAreTheSameOrTheDecodeFailsAndTheNextIsRight) {
    const Kind& kind = GetParam();
    Generator g(context_->get());
    uint64_t failed = 0, tried = 0;
    for (uint64_t n = kind.first % step();; n += step()) {
        read_faults_plan(n, kind.fault, kind.once);
        ASSERT_TRUE(same(g.generate(), reference())) << "read " << n << ": " << last_error();
        if (read_faults_suffered() == 0) break;  // it has no more reads
        EXPECT_EQ(read_faults_suffered(), kind.once);
        EXPECT_EQ(last_error(), "");
        ++tried;

        read_faults_plan(n, kind.fault, kEver);
        const Generation& broken = g.generate();
        ASSERT_TRUE(same_so_far(broken, reference())) << "read " << n;
        if (kind.harmless) {
            ASSERT_TRUE(same(broken, reference())) << "read " << n << ": " << last_error();
            continue;
        }
        if (read_faults_suffered() == 0) continue;  // the cache has it already
        ++failed;
        ASSERT_LT(broken.code, 0) << "read " << n;
        const std::string why = last_error();
        for (const char* part : {"layer", "expert", "offset", "model.gguf"})
            ASSERT_NE(why.find(part), std::string::npos) << why;
        read_faults_plan(0, read_fault_none, 0);
        // The sequence is as it was before: the very same call goes well now.
        ASSERT_TRUE(same(g.go_on(), reference())) << "read " << n << ": " << last_error();
        ASSERT_TRUE(same(g.generate(), reference())) << "read " << n << ": " << last_error();
    }
    EXPECT_GT(tried, 0U);
    EXPECT_EQ(failed > 0, !kind.harmless);
}

INSTANTIATE_TEST_SUITE_P(AtAnyRead, FaultsTest,
                         ::testing::Values(Kind{"io_error", read_fault_io, 1, false, 3},
                                           Kind{"stale", read_fault_stale, 1, false, 19},
                                           Kind{"interrupted", read_fault_interrupted, 3, false, 35},
                                           Kind{"short_read", read_fault_short, 1, true, 51},
                                           Kind{"end_of_file", read_fault_end, 1, false, 67},
                                           Kind{"bit_flip", read_fault_flip, 1, false, 83}),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    if (!::testing::GTEST_FLAG(list_tests)) {
        using namespace sluice;
        const Model model = load(original());
        if (model == nullptr) {
            std::fprintf(stderr, "%s is missing\n", original().c_str());
            return 1;
        }
        const Context ctx = context(model.get());
        reference() = Generator(ctx.get()).generate();
        if (reference().code != 0) return 1;
    }
    return RUN_ALL_TESTS();
}
