#include "plan/work.h"

#include <algorithm>

namespace sluice::plan {
namespace {

std::string type_name(model::TypeId type) {
    const model::TypeTraits* traits = model::type_traits(type);
    return traits != nullptr ? traits->name : "?";
}

// Tables of whole numbers are looked up (a token's experts, in deepseek4), never multiplied with.
bool is_table(model::TypeId type) {
    const std::string name = type_name(type);
    return name == "i8" || name == "i16" || name == "i32" || name == "i64";
}

// Of a matrix of experts one is enough; of others the largest tells most of the speed.
void keep_largest(std::map<std::string, Work::Matrix>& to, const std::string& type, const Work::Matrix& m) {
    Work::Matrix& kept = to[type];
    if (m.bytes > kept.bytes) kept = m;
}

}  // namespace

Work work_of(const model::GgufIndex& index, const model::Geometry& g) {
    Work w;
    w.layers = g.n_layer;
    w.cycle_bytes = g.cycle_bytes;
    w.expert_bytes = g.expert_bytes;
    std::map<uint64_t, uint64_t> by_size;
    for (const model::ExpertSet& s : g.sets) {
        w.sets.push_back({s.n_expert, s.n_used, s.record_bytes(), static_cast<uint32_t>(s.tensors.size())});
        for (const model::ExpertTensor& t : s.tensors) {
            w.experts[type_name(t.type)] += t.bytes_per_expert * s.n_used;
            by_size[t.bytes_per_expert] += t.bytes_per_expert * s.n_used;
            keep_largest(w.expert_matrices, type_name(t.type), {t.ne0, t.ne1, t.bytes_per_expert});
        }
    }
    uint64_t most = 0;
    for (const auto& [size, bytes] : by_size) {
        if (bytes < most) continue;
        most = bytes;
        w.component_bytes = size;
    }

    // Of an embedding table a token takes one row. Without an output matrix the table is that, too.
    const bool own_output = index.find("output.weight") != nullptr;
    for (const model::TensorEntry& t : index.tensors()) {
        int layer = 0;
        model::Component component = model::Component::gate;
        std::string group;
        if (model::parse_expert_tensor_name(t.name, layer, component, group)) continue;
        if (t.name == "per_layer_token_embd.weight" || (t.name == "token_embd.weight" && own_output)) continue;
        if (is_table(t.type)) continue;
        w.dense[type_name(t.type)] += t.bytes;
        if (t.n_dims == 2) keep_largest(w.dense_matrices, type_name(t.type), {t.ne[0], t.ne[1], t.bytes});
    }
    for (const char* name : {"output.weight", "token_embd.weight"}) {
        const model::TensorEntry* t = index.find(name);
        if (t == nullptr) continue;
        w.vocabulary = t->ne[1];
        break;
    }
    return w;
}

std::vector<double> shares_of(const cache::Layout& layout) {
    std::vector<double> shares;
    for (const uint32_t c : layout.class_of_set) {
        const cache::SizeClass& k = layout.classes[c];
        shares.push_back(k.n_records == 0 ? 1.0 : std::min(1.0, static_cast<double>(k.n_slots) / k.n_records));
    }
    return shares;
}

}  // namespace sluice::plan
