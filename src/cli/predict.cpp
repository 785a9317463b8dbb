// Owns: `sluice predict train`: makes the file that --predict-model takes.
// Keeps: the file is replaced whole or not at all, and is never one of those it was made from.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/number_after.h"
#include "cli/progress_bar.h"
#include "engine/train_gate.h"
#include "store/files.h"

namespace sluice::cli {
namespace {

struct Asked {
    engine::TrainGate training;
    std::string out;
    bool json = false;
};

Result<Asked> parse(std::vector<std::string> arguments) {
    Asked asked;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& a = arguments[i];
        const auto number = [&](uint64_t least, uint64_t most) { return number_after(arguments, i, least, most); };
        if (a == "-o") {
            if (i + 1 == arguments.size()) return error(Code::invalid_argument, "-o needs the name of a file");
            asked.out = arguments[++i];
        } else if (a == "--rank") {
            const auto n = number(0, route::kMostRank);
            if (!n.ok()) return n.status();
            asked.training.rank = static_cast<uint32_t>(*n);
        } else if (a == "--tokens") {
            const auto n = number(1, 1'000'000);
            if (!n.ok()) return n.status();
            asked.training.tokens = *n;
        } else if (a == "-t" || a == "--threads") {
            const auto n = number(1, 512);
            if (!n.ok()) return n.status();
            asked.training.threads = static_cast<unsigned>(*n);
        } else if (a == "--json") {
            asked.json = true;
        } else if ((a == "-m" || a == "--model") && i + 1 < arguments.size() && asked.training.model.empty()) {
            asked.training.model = arguments[++i];
        } else if (!a.starts_with('-') && !a.empty()) {
            (asked.training.model.empty() ? asked.training.model : asked.training.features.emplace_back()) = a;
        } else {
            return error(Code::invalid_argument, "do not understand \"{}\"; sluice predict --help", a);
        }
    }
    if (asked.training.model.empty() || asked.training.features.empty())
        return error(Code::invalid_argument,
                     "which model, and what is to be learned from? sluice predict train MODEL "
                     "FEATURES... -o FILE");
    if (asked.out.empty()) return error(Code::invalid_argument, "-o FILE: where to?");
    return asked;
}

// Known before the long work.
Status check_place(const Asked& asked) {
    std::vector<std::string> inputs = asked.training.features;
    inputs.push_back(asked.training.model);
    std::error_code ec;
    for (const std::string& path : inputs) {
        if (std::filesystem::equivalent(path, asked.out, ec))
            return error(Code::invalid_argument, "{} is not a place to write to: it is what is read", asked.out);
    }
    // A slip of the hand must not cost a model.
    std::array<char, 4> head{};
    if (std::ifstream(asked.out, std::ios::binary).read(head.data(), head.size()) &&
        std::string_view(head.data(), head.size()) == "GGUF")
        return error(Code::invalid_argument, "{} is a model: it is not overwritten", asked.out);
    return store::check_replaceable(store::Files::system(), asked.out);
}

std::string percent(uint64_t part, uint64_t all) {
    return all == 0 ? "-" : fmt::format("{:.1f}", 100 * static_cast<double>(part) / static_cast<double>(all));
}

std::string table(const engine::GateTraining& t) {
    std::string out = " layer   stale trained    ctrl  rank    slots\n";
    const auto line = [&](const std::string& layer, const route::HeldOut& h, const std::string& rank) {
        out += fmt::format("{:>6} {:>7} {:>7} {:>7} {:>5} {:>8}\n", layer, percent(h.stale, h.slots),
                           percent(h.trained, h.slots), percent(h.control, h.slots), rank, h.slots);
    };
    for (size_t s = 0; s < t.gate.sets.size(); ++s) {
        const route::TrainedGate::Set& set = t.gate.sets[s];
        line(fmt::format("{}", t.layers[s]), set.held_out,
             set.correction ? fmt::format("{}", set.correction->rank) : "-");
    }
    line("all", t.gate.held_out(), "");
    return out;
}

std::string text_of(const engine::GateTraining& t, const std::string& path, uint64_t bytes) {
    const route::HeldOut h = t.gate.held_out();
    const auto corrected =
        std::count_if(t.gate.sets.begin(), t.gate.sets.end(), [](const auto& s) { return s.correction.has_value(); });
    std::string out = table(t);
    out += fmt::format(
        "\nOf the experts chosen for the last {} of {} tokens, which were held out, the stale gate names {} %, the "
        "trained one {} %. {} of {} layers are corrected; in the others that was not better on tokens it had not "
        "seen.\n",
        t.tokens - t.gate.tokens, t.tokens, percent(h.stale, h.slots), percent(h.trained, h.slots), corrected,
        t.gate.sets.size());
    if (h.trained <= h.stale) out += "That is no gain: there is no reason to use this file.\n";
    out += fmt::format("{}: {}\n", path, human_bytes(bytes));
    return out;
}

nlohmann::json json_of(const engine::GateTraining& t, const std::string& path, uint64_t bytes) {
    const auto counts = [](const route::HeldOut& h) {
        return nlohmann::json{{"slots", h.slots}, {"stale", h.stale}, {"trained", h.trained}, {"control", h.control}};
    };
    nlohmann::json layers = nlohmann::json::array();
    for (size_t s = 0; s < t.gate.sets.size(); ++s) {
        nlohmann::json l = counts(t.gate.sets[s].held_out);
        l["layer"] = t.layers[s];
        const auto& c = t.gate.sets[s].correction;
        l["rank"] = c ? nlohmann::json(c->rank) : nlohmann::json(nullptr);
        layers.push_back(std::move(l));
    }
    return {{"file", path},
            {"bytes", bytes},
            {"model", t.gate.model},
            {"tokens", t.tokens},
            {"trained_on", t.gate.tokens},
            {"held_out", counts(t.gate.held_out())},
            {"layers", layers},
            {"notes", t.notes}};
}

int train(std::vector<std::string> arguments) {
    auto asked = parse(std::move(arguments));
    if (!asked.ok()) return fail(asked.status(), kUsage);
    if (Status s = check_place(*asked); !s.ok()) return fail(s, kFailed);
    catch_interrupts();
    ProgressBar bar("training");
    asked->training.stop = interrupted;
    asked->training.progress = [&](double part, const std::string& doing) { bar.show(part, doing); };
    const auto trained = engine::train_gate(asked->training);
    bar.clear();
    if (!trained.ok())
        return fail(trained.status(), trained.status().code() == Code::cancelled ? kInterrupted : kFailed);
    const auto bytes = route::trained_bytes(trained->gate);
    if (!bytes.ok()) return fail(bytes.status(), kFailed);
    Status kept = store::replace_file(store::Files::system(), asked->out, std::as_bytes(std::span(*bytes)));
    if (!kept.ok()) return fail(kept, kFailed);
    for (const std::string& note : trained->notes) std::fprintf(stderr, "sluice: %s\n", note.c_str());
    const std::string shown = asked->json ? json_of(*trained, asked->out, bytes->size()).dump(2) + "\n"
                                          : text_of(*trained, asked->out, bytes->size());
    return print_help(shown);
}

}  // namespace

int predict_command(std::vector<std::string> arguments) {
    if (asks_help(arguments)) return print_help(help_text(*find_command("predict")));
    if (arguments.empty() || arguments[0] != "train") {
        return fail(arguments.empty()
                        ? error(Code::invalid_argument, "predict what? sluice predict --help")
                        : error(Code::invalid_argument,
                                "there is no predict {}, only predict train; sluice predict --help", arguments[0]),
                    kUsage);
    }
    arguments.erase(arguments.begin());
    return train(std::move(arguments));
}

}  // namespace sluice::cli
