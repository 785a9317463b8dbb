#include "engine/train_gate.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <ggml.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "backend/feature_output.h"
#include "base/bytes.h"
#include "machine/memory_room.h"
#include "model/digest.h"
#include "model/geometry.h"
#include "model/gguf.h"
#include "route/train.h"

namespace sluice::engine {
namespace {

constexpr uint64_t kMostRouterBytes = GiB;

class ReadFile {
  public:
    static Result<ReadFile> open(const std::string& path) {
        // Without waiting for the other end, should it be a pipe.
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) return error(Code::not_found, "cannot open {}: {}", path, std::strerror(errno));
        ReadFile file(fd, path);
        struct stat st {};
        if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return error(Code::invalid_argument, "{} is no file", path);
        file.size_ = static_cast<uint64_t>(st.st_size);
        return file;
    }
    ReadFile(ReadFile&& o) noexcept : fd_(std::exchange(o.fd_, -1)), size_(o.size_), path_(std::move(o.path_)) {}
    ReadFile& operator=(ReadFile&&) = delete;
    ReadFile(const ReadFile&) = delete;
    ReadFile& operator=(const ReadFile&) = delete;
    ~ReadFile() {
        if (fd_ >= 0) ::close(fd_);
    }
    [[nodiscard]] uint64_t size() const { return size_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    Status read(uint64_t offset, std::span<char> to) const {
        while (!to.empty()) {
            const ssize_t n = pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0)
                return error(Code::io_error, "cannot read {} at {}: {}", path_, offset,
                             n < 0 ? std::strerror(errno) : "it ends there");
            to = to.subspan(static_cast<size_t>(n));
            offset += static_cast<uint64_t>(n);
        }
        return {};
    }

  private:
    ReadFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
    int fd_;
    uint64_t size_ = 0;
    std::string path_;
};

// ---- files of router inputs

struct FeatureFile {
    ReadFile file;
    uint64_t begin = 0, rows = 0;  // of the rows
};

class Features {
  public:
    // All rows of these files, up to `most`, of a model of this shape (but for how many experts a token uses).
    static Result<Features> open(const TrainGate& asked, const route::FeatureShape& model,
                                 std::vector<std::string>& notes) {
        Features all;
        for (auto at = asked.features.begin(); at != asked.features.end(); ++at) {
            const std::string& path = *at;
            // What is held out would be what was learned from.
            std::error_code none;
            const auto same = [&](const std::string& p) { return std::filesystem::equivalent(p, path, none); };
            if (std::any_of(asked.features.begin(), at, same))
                return error(Code::invalid_argument, "{} is given twice", path);
            if (Status s = all.add(asked, path, model, notes); !s.ok()) return s;
        }
        return all;
    }
    [[nodiscard]] const route::FeatureShape& shape() const { return shape_; }
    [[nodiscard]] uint64_t rows() const { return rows_; }

    // The tokens of which it is known what sets `from` and `to` were given.
    Result<route::Samples> samples(uint32_t from, uint32_t to) const {
        const route::FeatureShape::Set &a = shape_.sets[from], &b = shape_.sets[to];
        route::Samples out;
        out.n_input = b.n_input;
        out.n_used = b.n_used;
        const size_t from_at = route::feature_offset(shape_, from), to_at = route::feature_offset(shape_, to);
        const size_t row = route::feature_row_bytes(shape_);
        std::string from_part(route::feature_bytes(a), '\0'), to_part(route::feature_bytes(b), '\0');
        std::vector<float> x(a.n_input), y(b.n_input);
        std::vector<int32_t> before(a.n_used), chosen(b.n_used);
        out.from.reserve(rows_ * a.n_input);
        out.to.reserve(rows_ * b.n_input);
        for (const FeatureFile& f : files_) {
            for (uint64_t r = 0; r < f.rows; ++r) {
                if (Status s = f.file.read(f.begin + r * row + from_at, from_part); !s.ok()) return s;
                if (Status s = f.file.read(f.begin + r * row + to_at, to_part); !s.ok()) return s;
                if (!route::read_feature(a, from_part, x, before) || !route::read_feature(b, to_part, y, chosen))
                    continue;
                out.from.insert(out.from.end(), x.begin(), x.end());
                out.to.insert(out.to.end(), y.begin(), y.end());
                out.chosen.insert(out.chosen.end(), chosen.begin(), chosen.end());
                ++out.tokens;
            }
        }
        return out;
    }

  private:
    Status add(const TrainGate& asked, const std::string& path, const route::FeatureShape& model,
               std::vector<std::string>& notes) {
        auto file = ReadFile::open(path);
        if (!file.ok()) return file.status();
        std::string head(std::min<uint64_t>(file->size(), route::kMostFeatureHeader), '\0');
        if (Status s = file->read(0, head); !s.ok()) return s;
        auto shape = route::parse_feature_header(head);
        if (!shape.ok()) return shape.status().within(path);
        if (Status s = same_model(*shape, model); !s.ok()) return s.within(path);
        const uint64_t begin = route::feature_header_bytes(*shape);
        if (!shape->lossy.empty()) {
            notes.push_back(fmt::format(
                "{} is of a run with {}: what its routers were given is not what they are given without; what is "
                "learned is for such runs",
                path, shape->lossy));
        }
        if (files_.empty()) {
            shape_ = std::move(*shape);
        } else if (!shape->same_rows(shape_)) {
            return error(Code::conflict, "{} is of runs with another number of experts per token than {}", path,
                         asked.features[0]);
        }
        const uint64_t row = route::feature_row_bytes(shape_);
        FeatureFile f{std::move(*file), begin, 0};
        const uint64_t there = (f.file.size() - begin) / row;
        if ((f.file.size() - begin) % row != 0)
            notes.push_back(fmt::format("{}: the last token is cut off and left out", path));
        f.rows = std::min(there, asked.tokens - rows_);
        if (f.rows == 0 && there > 0) {
            notes.push_back(fmt::format("{} is not used: there are tokens enough without it (--tokens)", path));
        } else if (f.rows < there)
            notes.push_back(fmt::format("{}: only the first {} of {} tokens are used (--tokens)", path, f.rows, there));
        std::string bytes(row, '\0');
        for (uint64_t r = 0; r < f.rows; ++r) {
            if (asked.stop && asked.stop()) return error(Code::cancelled, "interrupted; nothing is written");
            if (Status s = f.file.read(begin + r * row, bytes); !s.ok()) return s;
            if (!route::is_feature_row(bytes))
                return error(Code::corrupt, "{}: token {} was changed since it was written; record it anew", path, r);
        }
        for (const FeatureFile& other : files_) {
            const auto repeated = begin_alike(f, other);
            if (!repeated.ok()) return repeated.status();
            if (*repeated)
                return error(
                    Code::invalid_argument,
                    "{} and {} begin with the same tokens, all that one of them has: give one alone, the longer one",
                    other.file.path(), path);
        }
        rows_ += f.rows;
        files_.push_back(std::move(f));
        return {};
    }

    // Whether all of one is how the other begins, as of one run that was recorded twice: its tokens would count twice.
    [[nodiscard]] Result<bool> begin_alike(const FeatureFile& a, const FeatureFile& b) const {
        const size_t row = route::feature_row_bytes(shape_);
        const uint64_t rows = std::min(a.rows, b.rows);
        std::string of_a(row, '\0'), of_b(row, '\0');
        for (uint64_t r = 0; r < rows; ++r) {
            if (Status s = a.file.read(a.begin + r * row, of_a); !s.ok()) return s;
            if (Status s = b.file.read(b.begin + r * row, of_b); !s.ok()) return s;
            if (of_a != of_b) return false;
        }
        return rows > 0;
    }

    static Status same_model(const route::FeatureShape& file, const route::FeatureShape& model) {
        bool same = file.model == model.model && file.sets.size() == model.sets.size();
        for (size_t i = 0; same && i < file.sets.size(); ++i) {
            route::FeatureShape::Set s = file.sets[i];
            s.n_used = model.sets[i].n_used;
            same = s == model.sets[i];
        }
        return same ? Status()
                    : error(Code::conflict, "it is of another model ({}, and this one is {})", file.model, model.model);
    }

    route::FeatureShape shape_;
    std::vector<FeatureFile> files_;
    uint64_t rows_ = 0;
};

// ---- the model's routers

// A tensor of the model as numbers; empty if it has none of this name.
Result<std::vector<float>> read_tensor(const model::GgufIndex& index, const std::string& name) {
    const model::TensorEntry* t = index.find(name);
    if (t == nullptr) return std::vector<float>();
    const auto type = static_cast<ggml_type>(t->type);
    const ggml_type_traits* traits = t->type < GGML_TYPE_COUNT ? ggml_get_type_traits(type) : nullptr;
    if (traits == nullptr || t->bytes > kMostRouterBytes || (type != GGML_TYPE_F32 && traits->to_float == nullptr))
        return error(Code::unsupported, "{} is of a form that this cannot read", name);
    auto file = ReadFile::open(index.files()[t->file].path);
    if (!file.ok()) return file.status();
    std::string bytes(t->bytes, '\0');
    if (Status s = file->read(t->offset, bytes); !s.ok()) return s;
    const uint64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    std::vector<float> out(n);
    if (type == GGML_TYPE_F32) {
        std::memcpy(out.data(), bytes.data(), n * sizeof(float));
    } else {
        traits->to_float(bytes.data(), out.data(), static_cast<int64_t>(n));
    }
    return out;
}

Result<route::RouterRule> router_of(const model::GgufIndex& index, const route::FeatureShape::Set& set) {
    route::RouterRule rule;
    rule.n_expert = set.n_expert;
    rule.n_input = set.n_input;
    const auto take = [&](const char* name, std::vector<float>& to, size_t n) -> Status {
        auto numbers = read_tensor(index, fmt::format("blk.{}.{}", set.layer, name));
        if (!numbers.ok()) return numbers.status();
        if (!numbers->empty() && numbers->size() != n)
            return error(Code::unsupported, "blk.{}.{} has another size than the router", set.layer, name);
        to = std::move(*numbers);
        return {};
    };
    if (Status s = take("ffn_gate_inp.weight", rule.weight, rule.n_expert * rule.n_input); !s.ok()) return s;
    if (Status s = take("ffn_gate_inp.bias", rule.bias, rule.n_expert); !s.ok()) return s;
    if (Status s = take("exp_probs_b.bias", rule.choice_bias, rule.n_expert); !s.ok()) return s;
    switch (index.arch_number("expert_gating_func").value_or(1)) {
        case 2:
            rule.scoring = route::RouterRule::Scoring::sigmoid;
            break;
        case 4:
            rule.scoring = route::RouterRule::Scoring::root_softplus;
            break;
        default:
            break;
    }
    return rule;
}

// The set of the same kind one layer before.
std::optional<uint32_t> before(const model::Geometry& geometry, uint32_t set) {
    for (uint32_t s = set; s-- > 0;) {
        if (geometry.sets[s].group == geometry.sets[set].group) return s;
    }
    return std::nullopt;
}

// ---- one layer after the other, on several threads

class Training {
  public:
    Training(const TrainGate& asked, const model::GgufIndex& index, const Features& features, GateTraining& out)
        : asked_(asked), index_(index), features_(features), out_(out) {
        for (uint32_t s = 0; s < out.gate.sets.size(); ++s) {
            const route::FeatureShape::Set &to = features.shape().sets[s],
                                           &from = features.shape().sets[out.gate.sets[s].from];
            if (out.gate.sets[s].from != s && to.n_input > 0 && to.n_input == from.n_input) sets_.push_back(s);
        }
    }
    Status run() {
        uint64_t most = 1;
        for (const uint32_t s : sets_) most = std::max(most, memory_for(features_.shape().sets[s].n_input));
        const uint64_t room = machine::read_memory_room("").free().value_or(UINT64_MAX);
        if (most > room)
            return error(Code::no_memory, "training takes about {} and {} are free: fewer tokens take less (--tokens)",
                         human_bytes(most), human_bytes(room));
        uint64_t n = asked_.threads != 0 ? asked_.threads : std::max(1U, std::thread::hardware_concurrency());
        n = std::min({n, std::max<uint64_t>(1, sets_.size()), std::max<uint64_t>(1, room / 2 / most)});
        std::vector<std::thread> others;
        for (uint64_t i = 1; i < n; ++i) others.emplace_back([this] { work(false); });
        work(true);
        for (std::thread& t : others) t.join();
        return failed_;
    }

  private:
    // Of a layer while it is fitted, roughly: its tokens a few times over, and what is solved, with a copy.
    [[nodiscard]] uint64_t memory_for(uint64_t n_input) const {
        const uint64_t tokens = features_.rows(), solved = std::min(tokens, n_input);
        return 5 * sizeof(float) * tokens * n_input + 3 * sizeof(double) * solved * solved +
               (tokens < n_input ? sizeof(double) * tokens * n_input : 0);
    }
    void work(bool shows) {
        while (true) {
            const size_t i = next_++;
            if (i >= sets_.size() || ended_) return;
            if (shows && asked_.progress)
                asked_.progress(static_cast<double>(done_) / static_cast<double>(sets_.size()),
                                fmt::format("layer {}", out_.layers[sets_[i]]));
            Status s = asked_.stop && asked_.stop() ? error(Code::cancelled, "interrupted; nothing is written")
                                                    : guarded(sets_[i]);
            ++done_;
            if (s.ok()) continue;
            const std::lock_guard<std::mutex> lock(mutex_);
            if (failed_.ok()) failed_ = std::move(s);
            ended_ = true;
        }
    }
    Status guarded(uint32_t set) {
        try {
            return one(set);
        } catch (const std::bad_alloc&) {
            return error(Code::no_memory, "no memory to train with so many tokens: fewer (--tokens) or -t 1 take less");
        }
    }
    Status one(uint32_t set) {
        route::TrainedGate::Set& to = out_.gate.sets[set];
        const auto rule = router_of(index_, features_.shape().sets[set]);
        if (!rule.ok()) return rule.status();
        const auto samples = features_.samples(to.from, set);
        if (!samples.ok()) return samples.status();
        if (rule->weight.empty() || samples->tokens < route::kLeastTokens) return {};
        route::Fit fit = route::fit(*rule, *samples, asked_.rank);
        to.correction = std::move(fit.correction);
        to.held_out = fit.held_out;
        const std::lock_guard<std::mutex> lock(mutex_);
        out_.trained[set] = true;
        out_.gate.tokens = std::max<uint64_t>(out_.gate.tokens, route::tokens_trained(samples->tokens));
        return {};
    }

    const TrainGate& asked_;
    const model::GgufIndex& index_;
    const Features& features_;
    GateTraining& out_;
    std::vector<uint32_t> sets_;
    std::atomic<size_t> next_{0}, done_{0};
    std::atomic<bool> ended_{false};
    std::mutex mutex_;
    Status failed_;
};

}  // namespace

Result<GateTraining> train_gate(const TrainGate& asked) {
    const auto index = model::GgufIndex::open(asked.model);
    if (!index.ok()) return index.status();
    const auto geometry = model::derive_geometry(*index);
    if (!geometry.ok()) return geometry.status().within(asked.model);
    auto digest = model::dense_digest(*index, *geometry);
    if (!digest.ok()) return digest.status();
    const route::FeatureShape shape = backend::feature_shape(*index, *geometry, std::move(*digest));

    GateTraining out;
    const auto features = Features::open(asked, shape, out.notes);
    if (!features.ok()) return features.status();
    out.tokens = features->rows();
    if (out.tokens < route::kLeastTokens)
        return error(Code::invalid_argument,
                     "{} tokens are too few to learn from: at least {}, better some thousands (-n of the run with "
                     "--route-features)",
                     out.tokens, route::kLeastTokens);
    out.gate.model = shape.model;
    for (uint32_t s = 0; s < shape.sets.size(); ++s) {
        out.layers.push_back(geometry->sets[s].layer);
        out.gate.sets.push_back({.n_expert = shape.sets[s].n_expert,
                                 .n_input = shape.sets[s].n_input,
                                 .from = before(*geometry, s).value_or(s),
                                 .correction = std::nullopt,
                                 .held_out = {}});
    }
    out.trained.assign(shape.sets.size(), false);
    if (Status s = Training(asked, *index, *features, out).run(); !s.ok()) return s;
    if (std::find(out.trained.begin(), out.trained.end(), true) == out.trained.end())
        return error(Code::unsupported,
                     "no layer of {} has a router that could be followed into the next one: there is nothing to train",
                     asked.model);
    return out;
}

}  // namespace sluice::engine
