// Owns: `sluice inspect`: a model's geometry, and what caches of several sizes hold of it.
// Keeps: headers are read, weights are not.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "backend/options.h"
#include "base/bytes.h"
#include "cache/layout.h"
#include "cli/commands.h"
#include "sched/fetcher.h"
#include "store/record_store.h"

namespace sluice::cli {
namespace {

struct Holding {
    uint64_t budget = 0;
    uint64_t used = 0;
    uint64_t slots = 0;
};

Result<Holding> holding(const std::vector<cache::SetShape>& shapes, uint64_t budget, uint32_t top_k) {
    auto layout = cache::plan_layout(shapes, budget, std::max(1U, top_k));
    if (!layout.ok()) return layout.status();
    Holding h{.budget = budget, .used = layout->arena_bytes, .slots = 0};
    for (const cache::SizeClass& c : layout->classes) h.slots += c.n_slots;
    return h;
}

std::string types_of(const model::Geometry& g, model::Component component) {
    std::set<std::string> names;
    for (const model::ExpertSet& s : g.sets) {
        for (const model::ExpertTensor& t : s.tensors) {
            if (t.component == component) names.insert(model::type_traits(t.type)->name);
        }
    }
    std::string out;
    for (const std::string& n : names) out += (out.empty() ? "" : ", ") + n;
    return out;
}

}  // namespace

int inspect_command(std::vector<std::string> arguments) {
    bool json = false;
    std::string path;
    Config config;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& a = arguments[i];
        if (a == "--help" || a == "-h") {
            std::fputs(help_text(*find_command("inspect")).c_str(), stdout);
            return kOk;
        }
        if (a == "--json") {
            json = true;
        } else if (a == "--cache-mb" || a.starts_with("--cache-mb=")) {
            std::vector<std::string> taken{a};
            if (a == "--cache-mb" && i + 1 < arguments.size()) taken.push_back(arguments[++i]);
            if (Status s = backend::take_options(config, taken, backend::Place::tool); !s.ok()) return fail(s, kUsage);
        } else if ((a == "-m" || a == "--model") && i + 1 < arguments.size() && path.empty()) {
            path = arguments[++i];
        } else if (!a.starts_with('-') && path.empty()) {
            path = a;
        } else {
            return fail(error(Code::invalid_argument, "do not understand {}; sluice inspect --help", a), kUsage);
        }
    }
    if (path.empty()) return fail(error(Code::invalid_argument, "which model? sluice inspect MODEL"), kUsage);

    const auto index = model::GgufIndex::open(path);
    if (!index.ok()) return fail(index.status(), kFailed);
    const auto geometry = model::derive_geometry(*index);
    if (!geometry.ok()) return fail(geometry.status(), kFailed);
    const model::Geometry& g = *geometry;
    const auto store = store::RecordStore::open(*index, g, {}, nullptr);
    if (!store.ok()) return fail(store.status(), kFailed);
    const auto shapes = sched::Slots::shapes(*store, {});
    const uint64_t full = cache::full_budget(shapes);
    const uint64_t least = cache::minimum_budget(shapes);
    // One token in slots, which are a little larger than the experts in them.
    uint64_t cycle_slots = 0;
    for (size_t i = 0; i < shapes.size(); ++i) cycle_slots += g.sets[i].n_used * shapes[i].slot_bytes();

    std::vector<uint64_t> budgets;
    if (config.cache_bytes) {
        budgets.push_back(*config.cache_bytes);
    } else {
        budgets.push_back(least);
        for (const uint64_t tenth : {1U, 2U, 3U, 5U, 7U, 10U}) {
            const uint64_t b = tenth == 10 ? full : full / 10 * tenth;
            if (b > budgets.back()) budgets.push_back(b);
        }
    }
    std::vector<Holding> holdings;
    for (const uint64_t b : budgets) {
        const auto h = holding(shapes, b, g.n_expert_used);
        if (!h.ok()) return fail(h.status(), kFailed);
        holdings.push_back(*h);
    }

    if (json) {
        nlohmann::ordered_json j;
        j["path"] = path;
        j["architecture"] = g.architecture;
        for (const model::FileEntry& f : index->files()) j["files"].push_back({{"path", f.path}, {"bytes", f.size}});
        j["layers"] = g.n_layer;
        j["experts_used"] = g.n_expert_used;
        j["experts"] = g.n_records();
        j["expert_bytes"] = g.expert_bytes;
        j["dense_bytes"] = g.dense_bytes;
        j["read_from"] = store->holder(0).name;
        j["token_cycle_bytes"] = g.cycle_bytes;
        j["largest_expert_bytes"] = g.largest_record_bytes;
        j["smallest_cache_bytes"] = least;
        j["full_cache_bytes"] = full;
        for (const model::ExpertSet& s : g.sets) {
            nlohmann::ordered_json set{
                {"layer", s.layer}, {"group", s.group}, {"experts", s.n_expert}, {"expert_bytes", s.record_bytes()}};
            for (const model::ExpertTensor& t : s.tensors) {
                set["components"].push_back({{"name", model::component_name(t.component)},
                                             {"type", model::type_traits(t.type)->name},
                                             {"bytes", t.bytes_per_expert}});
            }
            j["expert_layers"].push_back(set);
        }
        for (const Holding& h : holdings) {
            j["caches"].push_back({{"budget_bytes", h.budget},
                                   {"used_bytes", h.used},
                                   {"experts_held", h.slots},
                                   {"token_cycles", static_cast<double>(h.used) / static_cast<double>(cycle_slots)}});
        }
        // Names from a file need not be valid UTF-8.
        std::puts(j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
        return kOk;
    }

    std::string out = fmt::format("{}\n  architecture      {}, {} layers, {} with experts", path, g.architecture,
                                  g.n_layer, g.sets.size());
    if (index->files().size() > 1) out += fmt::format(", {} files", index->files().size());
    uint32_t low = UINT32_MAX;
    uint32_t high = 0;
    for (const model::ExpertSet& s : g.sets) {
        low = std::min(low, s.n_expert);
        high = std::max(high, s.n_expert);
    }
    out += fmt::format("\n  experts           {} per layer, {} used per token",
                       low == high ? std::to_string(low) : fmt::format("{} to {}", low, high), g.n_expert_used);
    out += fmt::format("\n  one expert        {} at most:", human_bytes(g.largest_record_bytes));
    for (const model::Component c :
         {model::Component::gate, model::Component::up, model::Component::gate_up, model::Component::down}) {
        const std::string types = types_of(g, c);
        if (!types.empty()) out += fmt::format(" {} {}", model::component_name(c), types);
    }
    out += fmt::format("\n  dense weights     {} (always in memory)", human_bytes(g.dense_bytes));
    out += fmt::format("\n  all experts       {}", human_bytes(g.expert_bytes));
    if (const std::string& used = store->holder(0).name; used != index->files()[0].path)
        out += fmt::format("\n  read from         {}", used);
    for (size_t h = 1; h < store->n_holders(); ++h)
        out += fmt::format("\n  in reserve        {}", store->holder(static_cast<store::HolderId>(h)).name);
    out += fmt::format("\n  one token         {} of experts (one token cycle; a smaller cache hits little)\n\n",
                       human_bytes(g.cycle_bytes));
    out +=
        fmt::format("  A cache keeps each expert in a slot of whole pages: {} for all of them.\n\n", human_bytes(full));
    out += fmt::format("  {:>14}  {:>14}  {:>9}  {:>12}\n", "cache", "experts held", "of all", "token cycles");
    for (const Holding& h : holdings) {
        out += fmt::format("  {:>14}  {:>14}  {:>7.1f} %  {:>12.2f}\n", human_bytes(h.budget), h.slots,
                           100.0 * static_cast<double>(h.slots) / static_cast<double>(g.n_records()),
                           static_cast<double>(h.used) / static_cast<double>(cycle_slots));
    }
    std::fputs(out.c_str(), stdout);
    return kOk;
}

}  // namespace sluice::cli
