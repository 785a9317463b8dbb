// Owns: what each architecture's file must contain: metadata and tensors, named and shaped as llama.cpp reads them.
// Keeps: nothing about files; a plan is a list, and the order of its tensors is the order in the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "make_model.h"

struct gguf_context;

namespace sluice::fixture {

// How a tensor's values are drawn.
enum class Fill {
    normal,      // mean 0, deviation `scale`
    norm,        // a norm's gain: near `scale`
    decay,       // negative, between -scale and -scale / 10: state decay
    positive,    // between scale / 2 and 3 scale / 2
    vocabulary,  // as normal, but with rows of zeros for the tokens a random model had better not say
    expert_ids,  // integers: each row names different experts
};

// Which of the spec's types a tensor takes.
enum class Role { vector, matrix, gate, up, down };  // gate .. down: routed experts

struct TensorPlan {
    std::string name;
    std::vector<int64_t> shape;  // ggml's order: the row's length first
    Fill fill = Fill::normal;
    float scale = 1.0F;
    Role role = Role::matrix;
    uint32_t layer = 0;
};

// A model in the making.
class Plan {
  public:
    Plan(const ModelSpec& spec, gguf_context* gguf) : spec_(spec), gguf_(gguf) {}

    [[nodiscard]] const ModelSpec& spec() const { return spec_; }
    [[nodiscard]] const std::vector<TensorPlan>& tensors() const { return tensors_; }

    // Metadata under "ARCH.".
    void key(std::string_view name, uint32_t value);
    void key(std::string_view name, float value);
    void key(std::string_view name, bool value);
    void key(std::string_view name, const std::vector<uint32_t>& values);
    void key(std::string_view name, const std::vector<uint64_t>& values);
    void key(std::string_view name, const std::vector<float>& values);
    void key_flags(std::string_view name, const std::vector<bool>& values);

    void matrix(const std::string& name, std::vector<int64_t> shape, float gain = 1.0F);
    void tensor(const std::string& name, std::vector<int64_t> shape, Fill fill, float scale, Role role,
                uint32_t layer = 0);
    void norm(const std::string& name, int64_t width, float gain = 1.0F);

  private:
    const ModelSpec& spec_;
    gguf_context* gguf_;
    std::vector<TensorPlan> tensors_;
};

struct Arch {
    const char* name;
    ModelSpec (*defaults)();
    Status (*plan)(Plan&);
    bool can_tie;           // llama.cpp loads it without an output matrix
    bool can_fuse_gate_up;  // ... with gate and up in one tensor
};

const std::vector<Arch>& archs();

}  // namespace sluice::fixture
