#include "model/geometry.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#include "model/text.h"

namespace sluice::model {
namespace {

// Takes `prefix` off the front of `text`.
bool eat(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
}

// Takes a decimal number without sign or leading zero, below kMaxLayers (which is also far above any expert count).
std::optional<int> eat_number(std::string_view& text) {
    size_t digits = 0;
    int value = 0;
    while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') {
        value = 10 * value + (text[digits] - '0');
        digits++;
        if (value >= static_cast<int>(kMaxLayers)) return std::nullopt;
    }
    if (digits == 0 || (digits > 1 && text[0] == '0')) return std::nullopt;
    text.remove_prefix(digits);
    return value;
}

// "blk.<layer>.ffn_<gate|up|down>.<expert>.weight": how Mixtral's experts were stored before they were merged.
bool is_single_expert_name(std::string_view name) {
    if (!eat(name, "blk.") || !eat_number(name) || !eat(name, ".ffn_")) return false;
    if (!eat(name, "gate.") && !eat(name, "up.") && !eat(name, "down.")) return false;
    return eat_number(name) && name == ".weight";
}

// The top-k of a layer, from a number for all or one per layer. nullopt when the metadata do not give one.
std::optional<uint64_t> experts_used(const GgufIndex& index, uint32_t layer) {
    const MetaValue* value = index.meta(index.architecture() + ".expert_used_count");
    const auto* per_layer = value == nullptr ? nullptr : std::get_if<std::vector<int64_t>>(value);
    if (per_layer != nullptr && layer < per_layer->size()) {
        return static_cast<uint64_t>(std::max<int64_t>(0, (*per_layer)[layer]));
    }
    return index.arch_number("expert_used_count");
}

Result<ExpertTensor> make_expert_tensor(const TensorEntry& entry, Component component, uint32_t tensor,
                                        const std::string& path) {
    // The writer drops trailing dimensions of 1, so a layer with a single expert has a matrix here.
    if (entry.n_dims < 2 || entry.ne[3] != 1 || entry.bytes == 0) {
        return error(Code::unsupported, "{}: tensor {} with shape [{}, {}, {}, {}] is not a stack of expert matrices",
                     path, quoted(entry.name), entry.ne[0], entry.ne[1], entry.ne[2], entry.ne[3]);
    }
    if (entry.ne[2] > UINT32_MAX) {
        return error(Code::unsupported, "{}: tensor {} claims {} experts", path, quoted(entry.name), entry.ne[2]);
    }
    // Holds while rows are whole blocks; a type that packs across rows would break it, and then slices do not exist.
    if (entry.bytes % entry.ne[2] != 0) {
        return error(Code::unsupported, "{}: the experts of tensor {} are not whole blocks", path, quoted(entry.name));
    }
    ExpertTensor out;
    out.component = component;
    out.tensor = tensor;
    out.file = entry.file;
    out.offset = entry.offset;
    out.bytes_per_expert = entry.bytes / entry.ne[2];
    out.type = entry.type;
    out.ne0 = entry.ne[0];
    out.ne1 = entry.ne[1];
    return out;
}

Result<Geometry> derive(const GgufIndex& index) {
    const std::string& path = index.files().front().path;
    const std::vector<TensorEntry>& tensors = index.tensors();
    Geometry out;
    out.architecture = index.architecture();

    std::map<std::pair<int, std::string>, ExpertSet> sets;
    for (size_t i = 0; i < tensors.size(); i++) {
        const TensorEntry& entry = tensors[i];
        int layer = 0;
        Component component = Component::gate;
        std::string group;
        if (is_single_expert_name(entry.name)) {
            return error(Code::unsupported,
                         "{} keeps every expert in a tensor of its own (such as {}), an old layout; convert the "
                         "original model again with a current version of llama.cpp's converter",
                         path, quoted(entry.name));
        }
        if (!parse_expert_tensor_name(entry.name, layer, component, group)) {
            out.dense_bytes += entry.bytes;
            continue;
        }
        Result<ExpertTensor> tensor = make_expert_tensor(entry, component, static_cast<uint32_t>(i), path);
        if (!tensor) return tensor.status();
        ExpertSet& set = sets[{layer, group}];
        const auto n_expert = static_cast<uint32_t>(entry.ne[2]);
        if (!set.tensors.empty() && set.n_expert != n_expert) {
            return error(Code::unsupported, "{}: tensor {} has {} experts, but {} has {}", path, quoted(entry.name),
                         n_expert, quoted(tensors[set.tensors.front().tensor].name), set.n_expert);
        }
        set.layer = layer;
        set.group = group;
        set.n_expert = n_expert;
        set.tensors.push_back(*tensor);
        out.expert_bytes += entry.bytes;
    }
    if (sets.empty() && tensors.empty()) {
        return error(Code::unsupported, "{} is not a Mixture-of-Experts model: it has no tensors at all", path);
    }
    if (sets.empty()) {
        return error(Code::unsupported,
                     "{} is not a Mixture-of-Experts model: none of its {} tensors holds experts "
                     "(blk.*.ffn_*_exps.weight)",
                     path, tensors.size());
    }
    if (out.architecture.empty()) {
        return error(Code::unsupported, "{} does not name its architecture (general.architecture)", path);
    }

    const std::optional<uint64_t> n_layer = index.arch_number("block_count");
    const int last_layer = sets.rbegin()->first.first;
    if (!n_layer || *n_layer > kMaxLayers) {
        return error(Code::unsupported, "{} does not say how many layers it has ({})", path,
                     quoted(out.architecture + ".block_count"));
    }
    if (static_cast<uint64_t>(last_layer) >= *n_layer) {
        return error(Code::unsupported, "{} has experts in layer {}, but its metadata give it {} layers", path,
                     last_layer, *n_layer);
    }
    out.n_layer = static_cast<uint32_t>(*n_layer);

    const uint64_t n_used = index.arch_number("expert_used_count").value_or(0);
    const uint32_t largest = std::max_element(sets.begin(), sets.end(), [](const auto& a, const auto& b) {
                                 return a.second.n_expert < b.second.n_expert;
                             })->second.n_expert;
    if (n_used == 0) {
        return error(Code::unsupported, "{} does not say how many experts a token uses ({})", path,
                     quoted(out.architecture + ".expert_used_count"));
    }
    if (n_used > largest) {
        return error(Code::unsupported, "{} says that a token uses {} experts, but no layer has more than {}", path,
                     n_used, largest);
    }
    out.n_expert_used = static_cast<uint32_t>(n_used);

    for (auto& [key, set] : sets) {
        std::sort(set.tensors.begin(), set.tensors.end(),
                  [](const ExpertTensor& a, const ExpertTensor& b) { return a.component < b.component; });
        // A second group may have fewer experts than the top-k of the first.
        const uint64_t used = experts_used(index, static_cast<uint32_t>(set.layer)).value_or(n_used);
        set.n_used = static_cast<uint32_t>(std::min<uint64_t>(used, set.n_expert));
        // Neither can overflow: the index holds no more tensor bytes than a signed 64-bit number.
        out.largest_record_bytes = std::max(out.largest_record_bytes, set.record_bytes());
        out.cycle_bytes += set.n_used * set.record_bytes();
        out.sets.push_back(std::move(set));
    }
    // The map is ordered by group name, in which "chexps" precedes "exps"; so are the sets of a layer.
    return out;
}

}  // namespace

const char* component_name(Component component) {
    switch (component) {
        case Component::gate:
            return "gate";
        case Component::up:
            return "up";
        case Component::gate_up:
            return "gate_up";
        case Component::down:
            return "down";
    }
    return "unknown";
}

uint64_t ExpertSet::record_bytes() const {
    uint64_t sum = 0;
    for (const ExpertTensor& tensor : tensors) sum += tensor.bytes_per_expert;
    return sum;
}

uint64_t Geometry::n_records() const {
    uint64_t sum = 0;
    for (const ExpertSet& set : sets) sum += set.n_expert;
    return sum;
}

uint32_t Geometry::n_expert_layers() const {
    uint32_t layers = 0;
    for (size_t s = 0; s < sets.size(); ++s) layers += s == 0 || sets[s].layer != sets[s - 1].layer ? 1 : 0;
    return layers;
}

bool parse_expert_tensor_name(std::string_view name, int& layer, Component& component, std::string& group) {
    if (!eat(name, "blk.")) return false;
    const std::optional<int> number = eat_number(name);
    if (!number || !eat(name, ".ffn_")) return false;
    Component found = Component::gate;
    // "gate_up_" before "gate_", which it begins with.
    if (eat(name, "gate_up_")) {
        found = Component::gate_up;
    } else if (eat(name, "gate_")) {
        found = Component::gate;
    } else if (eat(name, "up_")) {
        found = Component::up;
    } else if (eat(name, "down_")) {
        found = Component::down;
    } else {
        return false;
    }
    if (name != "exps.weight" && name != "chexps.weight") return false;
    layer = *number;
    component = found;
    group = name.substr(0, name.size() - std::string_view(".weight").size());
    return true;
}

Result<Geometry> derive_geometry(const GgufIndex& index) {
    try {
        if (index.files().empty()) return Status(Code::invalid_argument, "no model was opened");
        return derive(index);
    } catch (const std::bad_alloc&) {
        return Status(Code::no_memory, "not enough memory for the model's geometry");
    } catch (const std::exception& e) {
        return error(Code::internal, "deriving the model's geometry failed: {}", e.what());
    }
}

}  // namespace sluice::model
