// Owns: writing a plan as a GGUF file, a block of rows at a time, whatever its size.
#include "make_model.h"

#include <fmt/core.h>
#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <system_error>

#include "archs.h"
#include "base/bytes.h"
#include "random.h"
#include "tokenizer.h"

namespace sluice::fixture {

namespace {

struct FreeGguf {
    void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};
struct FreeGgml {
    void operator()(ggml_context* context) const { ggml_free(context); }
};
struct CloseFile {
    void operator()(FILE* file) const { std::fclose(file); }
};
using GgufPtr = std::unique_ptr<gguf_context, FreeGguf>;
using GgmlPtr = std::unique_ptr<ggml_context, FreeGgml>;
using FilePtr = std::unique_ptr<FILE, CloseFile>;

constexpr size_t values_per_block = 256 * 1024;
// A prime, so that no expert's count of rows divides it.
constexpr int64_t pool_rows = 509;

struct TypeInfo {
    const char* name;
    WeightType type;
    ggml_type ggml;
    uint32_t file_type;  // llama.cpp's number for a file that is mostly this
};
constexpr std::array<TypeInfo, 7> types = {{{"f32", WeightType::f32, GGML_TYPE_F32, 0},
                                            {"f16", WeightType::f16, GGML_TYPE_F16, 1},
                                            {"q8_0", WeightType::q8_0, GGML_TYPE_Q8_0, 7},
                                            {"q4_0", WeightType::q4_0, GGML_TYPE_Q4_0, 2},
                                            {"q4_k", WeightType::q4_k, GGML_TYPE_Q4_K, 14},
                                            {"q6_k", WeightType::q6_k, GGML_TYPE_Q6_K, 18},
                                            {"mxfp4", WeightType::mxfp4, GGML_TYPE_MXFP4, 38}}};

const TypeInfo& info_of(WeightType type) {
    return *std::find_if(types.begin(), types.end(), [&](const TypeInfo& info) { return info.type == type; });
}

const Arch* find_arch(std::string_view name) {
    for (const Arch& arch : archs()) {
        if (name == arch.name) return &arch;
    }
    return nullptr;
}

std::string arch_names() {
    std::string names;
    for (const Arch& arch : archs()) names += (names.empty() ? "" : ", ") + std::string(arch.name);
    return names;
}

Status check_spec(const ModelSpec& s) {
    const Arch* arch = find_arch(s.arch);
    const auto bad = [&](const std::string& why) { return error(Code::invalid_argument, "{}: {}", s.arch, why); };
    if (arch == nullptr) {
        return error(Code::invalid_argument, "unknown architecture '{}'; known: {}", s.arch, arch_names());
    }
    if (s.n_layer == 0 || s.n_layer > 512) return bad("the number of layers must be 1 to 512");
    if (s.n_embd == 0 || s.n_embd % 64 != 0) return bad("the embedding's width must be a multiple of 64");
    if (s.head_dim < 16 || s.head_dim % 16 != 0 || s.n_embd % s.head_dim != 0) {
        return bad("the head's width must be a multiple of 16 and divide the embedding's");
    }
    for (const uint32_t width : {s.n_ff, s.n_ff_dense, s.n_ff_shared}) {
        if (width == 0 || width % 32 != 0) return bad("feed-forward widths must be multiples of 32");
    }
    if (s.n_expert < 2 || s.n_expert > 512) return bad("the number of experts must be 2 to 512");
    if (s.n_expert_used == 0 || s.n_expert_used > s.n_expert) return bad("top-k must be 1 to the number of experts");
    if (s.n_group > 0) {
        const uint32_t group = s.n_expert / s.n_group;
        if (s.n_expert % s.n_group != 0 || group < 2) return bad("groups must be equal and of two experts at least");
        if (s.n_group < 2 || s.n_group_used == 0 || s.n_group_used >= s.n_group) {
            return bad("a token must use fewer groups than there are, and one at least");
        }
        if (s.n_expert_used > s.n_group_used * group) return bad("the groups used have fewer experts than top-k");
    }
    if (s.n_dense_lead > s.n_layer) return bad("there are not that many layers to be dense");
    if (s.n_vocab < min_vocab || s.n_vocab > max_vocab) {
        return bad(fmt::format("the vocabulary must have {} to {} tokens", min_vocab, max_vocab));
    }
    if (s.alignment < 32 || !is_power_of_two(s.alignment)) {
        return bad("the alignment must be a power of two, 32 at least");
    }
    if (s.tied_output && !arch->can_tie) return bad("llama.cpp wants an output matrix for this architecture");
    if (s.fused_gate_up && !arch->can_fuse_gate_up) return bad("llama.cpp wants separate gate and up tensors");
    return {};
}

// Mixed types as a quantiser with an importance matrix might choose them: unlike in neighbouring layers and components.
ggml_type mixed_type(const TensorPlan& tensor) {
    constexpr std::array<ggml_type, 5> mix = {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q5_1,
                                              GGML_TYPE_Q6_K};
    const uint32_t component = static_cast<uint32_t>(tensor.role) - static_cast<uint32_t>(Role::gate);
    return mix[(tensor.layer * 2 + component * 3) % mix.size()];
}

ggml_type type_of(const TensorPlan& tensor, const ModelSpec& spec) {
    if (tensor.fill == Fill::expert_ids) return GGML_TYPE_I32;
    if (tensor.role == Role::vector) return GGML_TYPE_F32;
    const bool routed = tensor.role != Role::matrix;
    ggml_type type = info_of(spec.type).ggml;
    if (routed && spec.mixed_types) type = mixed_type(tensor);
    // As published: MXFP4 is for experts, the rest has eight bits.
    if (!routed && type == GGML_TYPE_MXFP4) type = GGML_TYPE_Q8_0;
    return tensor.shape.front() % ggml_blck_size(type) == 0 ? type : GGML_TYPE_F16;
}

// gguf takes the alignment of tensor data only from a file it reads, so it is given one in memory.
Result<GgufPtr> new_gguf(uint32_t alignment) {
    const GgufPtr header(gguf_init_empty());
    gguf_set_val_u32(header.get(), "general.alignment", alignment);
    std::vector<std::byte> bytes(gguf_get_meta_size(header.get()));
    gguf_get_meta_data(header.get(), bytes.data());
    GgufPtr gguf(gguf_init_from_buffer(bytes.data(), bytes.size(), {.no_alloc = true, .ctx = nullptr}));
    if (gguf == nullptr || gguf_get_alignment(gguf.get()) != alignment) {
        return error(Code::internal, "cannot make a GGUF header with an alignment of {}", alignment);
    }
    return gguf;
}

// Draws values and brings them into a tensor's type.
class Rows {
  public:
    Rows(const TensorPlan& tensor, ggml_type type, const ModelSpec& spec)
        : tensor_(tensor),
          n_expert_(spec.n_expert),
          type_(type),
          width_(tensor.shape.front()),
          row_bytes_(ggml_row_size(type, width_)),
          random_(Random::seed_for(spec.seed, tensor.name)) {}

    [[nodiscard]] int64_t count() const {
        int64_t rows = 1;
        for (size_t i = 1; i < tensor_.shape.size(); ++i) rows *= tensor_.shape[i];
        return rows;
    }
    [[nodiscard]] size_t row_bytes() const { return row_bytes_; }

    // The next `rows` rows, of which `first` is the first one's number.
    void draw(int64_t first, int64_t rows, std::vector<std::byte>& out) {
        if (tensor_.fill == Fill::expert_ids) return draw_ids(rows, out);
        values_.resize(static_cast<size_t>(rows * width_));
        for (int64_t r = 0; r < rows; ++r) {
            float* row = values_.data() + r * width_;
            std::generate(row, row + width_, [&] { return value(); });
            if (tensor_.fill == Fill::vocabulary && is_unspeakable(static_cast<uint32_t>(first + r))) {
                std::fill(row, row + width_, 0.0F);
            }
        }
        out.resize(static_cast<size_t>(rows) * row_bytes_);
        ggml_quantize_chunk(type_, values_.data(), out.data(), 0, rows, width_, nullptr);
    }

    uint64_t random() { return random_.next(); }

  private:
    void draw_ids(int64_t rows, std::vector<std::byte>& out) {
        out.resize(static_cast<size_t>(rows) * row_bytes_);
        std::vector<int32_t> ids(n_expert_);
        for (int64_t r = 0; r < rows; ++r) {
            std::iota(ids.begin(), ids.end(), 0);
            for (size_t i = 0; i < static_cast<size_t>(width_); ++i) {
                std::swap(ids[i], ids[i + random_.next() % (ids.size() - i)]);
            }
            std::memcpy(out.data() + static_cast<size_t>(r) * row_bytes_, ids.data(), row_bytes_);
        }
    }

    float value() {
        const float scale = tensor_.scale;
        switch (tensor_.fill) {
            case Fill::normal:
            case Fill::vocabulary:
                return random_.normal() * scale;
            case Fill::norm:
                return (1.0F + 0.1F * random_.normal()) * scale;
            case Fill::decay:
                return (0.1F + 0.9F * random_.uniform()) * -scale;
            case Fill::positive:
                return (0.5F + random_.uniform()) * scale;
            case Fill::expert_ids:
                break;
        }
        return 0.0F;
    }

    const TensorPlan& tensor_;
    uint32_t n_expert_;
    ggml_type type_;
    int64_t width_;
    size_t row_bytes_;
    Random random_;
    std::vector<float> values_;
};

Status write_bytes(FILE* file, const std::vector<std::byte>& bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size()) return {};
    return error(Code::io_error, "writing: {}", std::strerror(errno));
}

Status write_tensor(FILE* file, const TensorPlan& tensor, ggml_type type, const ModelSpec& spec) {
    Rows rows(tensor, type, spec);
    const int64_t count = rows.count();
    const int64_t block = std::max<int64_t>(1, static_cast<int64_t>(values_per_block) / tensor.shape.front());
    std::vector<std::byte> bytes;
    // Rows are quantised one by one in every type, so a row of the pool stands for itself wherever it is copied to.
    if (spec.repeat_rows && count > pool_rows && tensor.fill == Fill::normal) {
        std::vector<std::byte> pool;
        rows.draw(0, pool_rows, pool);
        for (int64_t first = 0; first < count; first += block) {
            const int64_t n = std::min(block, count - first);
            bytes.resize(static_cast<size_t>(n) * rows.row_bytes());
            for (int64_t r = 0; r < n; ++r) {
                const size_t from = rows.random() % static_cast<uint64_t>(pool_rows);
                std::memcpy(bytes.data() + static_cast<size_t>(r) * rows.row_bytes(),
                            pool.data() + from * rows.row_bytes(), rows.row_bytes());
            }
            if (Status status = write_bytes(file, bytes); !status) return status;
        }
    } else {
        for (int64_t first = 0; first < count; first += block) {
            rows.draw(first, std::min(block, count - first), bytes);
            if (Status status = write_bytes(file, bytes); !status) return status;
        }
    }
    const size_t size = static_cast<size_t>(count) * rows.row_bytes();
    bytes.assign(align_up(size, spec.alignment) - size, std::byte{0});
    return write_bytes(file, bytes);
}

Status write_file(gguf_context* gguf, const Plan& plan, const std::string& path) {
    const FilePtr file(std::fopen(path.c_str(), "wb"));
    if (file == nullptr) return error(Code::io_error, "{}: {}", path, std::strerror(errno));
    std::vector<std::byte> header(gguf_get_meta_size(gguf));
    gguf_get_meta_data(gguf, header.data());
    if (Status status = write_bytes(file.get(), header); !status) return status.within(path);
    for (const TensorPlan& tensor : plan.tensors()) {
        Status status = write_tensor(file.get(), tensor, type_of(tensor, plan.spec()), plan.spec());
        if (!status) return status.within(path);
    }
    if (std::fflush(file.get()) != 0) return error(Code::io_error, "{}: {}", path, std::strerror(errno));
    return {};
}

// Tells gguf the tensors' names, types and shapes, from which it makes their offsets.
Status add_tensors(gguf_context* gguf, const Plan& plan) {
    const GgmlPtr context(ggml_init(
        {.mem_size = (plan.tensors().size() + 1) * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
    if (context == nullptr) return error(Code::no_memory, "no memory to describe {} tensors", plan.tensors().size());
    for (const TensorPlan& tensor : plan.tensors()) {
        ggml_tensor* described = ggml_new_tensor(context.get(), type_of(tensor, plan.spec()),
                                                 static_cast<int>(tensor.shape.size()), tensor.shape.data());
        ggml_set_name(described, tensor.name.c_str());
        gguf_add_tensor(gguf, described);
    }
    return {};
}

}  // namespace

std::vector<std::string> known_archs() {
    std::vector<std::string> names;
    for (const Arch& arch : archs()) names.emplace_back(arch.name);
    return names;
}

Result<ModelSpec> default_spec(const std::string& arch) {
    const Arch* known = find_arch(arch);
    if (known == nullptr) {
        return error(Code::invalid_argument, "unknown architecture '{}'; known: {}", arch, arch_names());
    }
    ModelSpec spec = known->defaults();
    spec.arch = arch;
    return spec;
}

ModelSpec mid_spec() {
    ModelSpec spec;
    spec.arch = "qwen3moe";
    spec.n_layer = 16;
    spec.n_embd = 1024;
    spec.n_ff = 512;
    spec.n_ff_dense = 512;
    spec.n_expert = 64;
    spec.n_expert_used = 8;
    spec.n_vocab = 8192;
    spec.head_dim = 128;
    spec.repeat_rows = true;
    spec.type = WeightType::q8_0;
    return spec;
}

Result<WeightType> parse_weight_type(std::string_view name) {
    std::string names;
    for (const TypeInfo& info : types) {
        if (name == info.name) return info.type;
        names += (names.empty() ? "" : ", ") + std::string(info.name);
    }
    return error(Code::invalid_argument, "unknown type '{}'; known: {}", name, names);
}

Status write_model(const ModelSpec& spec, const std::string& path) {
    if (Status status = check_spec(spec); !status) return status;
    Result<GgufPtr> gguf = new_gguf(spec.alignment);
    if (!gguf) return gguf.status();

    gguf_set_val_str(gguf->get(), "general.architecture", spec.arch.c_str());
    gguf_set_val_str(gguf->get(), "general.name", fmt::format("random {} {}", spec.arch, spec.seed).c_str());
    gguf_set_val_u32(gguf->get(), "general.file_type", info_of(spec.type).file_type);
    gguf_set_val_u32(gguf->get(), "general.quantization_version", GGML_QNT_VERSION);
    Plan plan(spec, gguf->get());
    if (Status status = find_arch(spec.arch)->plan(plan); !status) return status;
    add_tokenizer(gguf->get(), make_vocabulary(spec.n_vocab));
    if (Status status = add_tensors(gguf->get(), plan); !status) return status;

    const std::string partial = path + ".partial";
    Status status = write_file(gguf->get(), plan, partial);
    std::error_code problem;
    if (!status) {
        std::filesystem::remove(partial, problem);
        return status;
    }
    std::filesystem::rename(partial, path, problem);
    if (problem) return error(Code::io_error, "{}: {}", path, problem.message());
    return {};
}

}  // namespace sluice::fixture
