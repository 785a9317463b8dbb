// Owns: `sluice gate`: measures whether something holds for a model on this machine, and keeps the verdict.
// Keeps: a verdict may be no; an interrupted gate leaves none; no verdict turns anything on.
#include "cli/gate.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include "backend/recording.h"
#include "base/clock.h"
#include "base/same_file.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/progress_bar.h"
#include "cli/terminal.h"
#include "machine/facts.h"
#include "store/files.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::array<Gate, 3> kGates{{
    {"b", "TRACE... [--slots N] [--accept P]", "do routes leave room for drafted tokens that are verified in blocks?",
     "Reads up to 4 route traces (--route-trace FILE of any command that runs a model writes one) and tells, of "
     "decode: how much of a token's choice the tokens 1 to 32 before had, how many experts blocks of 2 to 5 tokens "
     "need together, how skewed each layer is, what caches of 1 to 128 slots per layer hit, and how many tokens have "
     "to come out of a block for it to read no more than decoding them one by one: without a cache, and with --slots N "
     "per layer (a quarter of the experts). Yes: more come out of some block, if each draft is right with the chance "
     "--accept (0.9).",
     measure_gate_b},
    {"c",
     "MODEL [--quick] [--prompt N] [--decode N] [-t N] [--repack] [--orders N] [--faults N] [--cancels N] [--seed N]",
     "does streaming compute what the resident model computes?",
     "Runs the model once as stock llama.cpp does, then streamed: with several cache sizes and wave widths, with and "
     "without overlap; with reads that arrive one by one in drawn orders (--orders, 8); with reads that fail once and "
     "for good (--faults, 16 of each); and cancelled at drawn moments (--cancels, 16). Compared, bit for bit, are the "
     "logits of every step and the state of the sequence; a decode that fails must leave that as it was, and the next "
     "try must be right. --quick: 2, 4, 4, and fewer sizes and widths. --prompt and --decode: tokens (32 and 8). "
     "--seed: what is drawn (1).",
     measure_gate_c},
    {"d", "MODEL [--prompt N] [--decode N] [-t N] [--repack] [--predict-model FILE] [--act]",
     "could acting on guesses of the routers' choices pay at all?",
     "Runs the model with caches of 25, 50 and 75 % of its experts, guesses what each router will choose (as "
     "--predict-log does) and acts on nothing. Yes: with each of these caches the guesses of --prefetch or "
     "--predict-prefetch could remove more of the time that tokens wait for reads than guessing takes and than its "
     "reads "
     "keep the drive from others. The wait that it removes is an upper bound, so no ends the matter, and yes allows a "
     "trial: --act makes one, with the better option off, on, on and off, which has to be faster both times. The "
     "drive, "
     "as sluice probe measured it, has to have room for reads that nobody waits for, since nothing is read early "
     "without. And the control has to be complete: routers run again on their own input choose what they chose. "
     "--predict-model: guesses as sluice predict train taught them, too. --prompt and --decode: tokens (32 and 64).",
     measure_gate_d},
}};

std::string gate_help() {
    std::string out = help_text(*find_command("gate")) + "\nGates:\n\n";
    for (const Gate& g : kGates) out += fmt::format("  {}  {}\n", g.name, g.summary);
    out += "\n  sluice gate GATE --help    what a gate measures, and its options\n";
    return out;
}

std::string gate_help(const Gate& gate) {
    constexpr size_t kWidth = 100;
    return fmt::format("usage: sluice gate {} {} [--out FILE] [--json]\n\n{}: {}\n\n{}", gate.name, gate.arguments,
                       gate.name, gate.summary, wrap_text(gate.help, 0, kWidth));
}

size_t page_width() {
    return std::clamp<size_t>(terminal_columns(STDOUT_FILENO).value_or(100), 60, 140);
}

Result<std::string> usual_directory() {
    auto directory = machine::gate_directory();
    return directory.ok() ? std::move(directory)
                          : directory.status().within("nowhere to keep the verdict (--out FILE names a place)");
}

// Known before the long work.
Status check_place(const std::string& out, const std::vector<std::string>& arguments) {
    if (out.empty()) {
        const auto directory = usual_directory();
        if (!directory.ok()) return directory.status();
        // It is made when there is a verdict; a failed gate leaves nothing.
        fs::path there = fs::absolute(*directory);
        std::error_code none;
        while (!fs::exists(there, none) && there.has_relative_path()) there = there.parent_path();
        if (!fs::is_directory(there, none))
            return error(Code::io_error, "cannot create {}: {} is no directory; --out FILE names another place",
                         *directory, there.string());
        return store::check_replaceable(store::Files::system(), (there / "verdict.json").string());
    }
    if (std::any_of(arguments.begin(), arguments.end(), [&](const std::string& a) { return same_file(a, out); }))
        return error(Code::invalid_argument, "{} is not a place to write to: it is what is measured", out);
    return store::check_replaceable(store::Files::system(), out);
}

Result<std::string> keep(const machine::GateVerdict& verdict, const std::string& text, std::string path) {
    std::error_code ec;
    if (path.empty()) {
        const auto directory = usual_directory();
        if (!directory.ok()) return directory.status();
        fs::create_directories(*directory, ec);
        if (ec)
            return error(Code::io_error, "cannot create {}: {}; --out FILE names another place", *directory,
                         ec.message());
        const auto place = machine::gate_path(*directory, verdict);
        if (!place.ok()) return place.status();
        path = *place;
    }
    for (const machine::GateInput& i : verdict.inputs) {
        if (fs::equivalent(path, i.path, ec))
            return error(Code::invalid_argument, "{} is not a place to write to: it is what was measured", path);
    }
    Status kept = store::replace_file(store::Files::system(), path, std::as_bytes(std::span(text.data(), text.size())));
    if (!kept.ok()) return kept.within("the verdict was not kept");
    return path;
}

}  // namespace

std::span<const Gate> gates() {
    return kGates;
}

int gate_command(std::vector<std::string> arguments) {
    const bool help = asks_help(arguments);
    const auto gate = arguments.empty() ? kGates.end() : std::find_if(kGates.begin(), kGates.end(), [&](const Gate& g) {
        return arguments[0] == g.name;
    });
    if (help) return print_help(gate == kGates.end() ? gate_help() : gate_help(*gate));
    if (gate == kGates.end()) {
        return fail(arguments.empty() ? error(Code::invalid_argument, "which gate? sluice gate --help lists them")
                                      : error(Code::invalid_argument,
                                              "there is no gate {}; sluice gate --help lists "
                                              "them",
                                              arguments[0]),
                    kUsage);
    }
    arguments.erase(arguments.begin());
    const bool json = take_switch(arguments, "--json");
    std::string out;
    for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i] != "--out") continue;
        if (i + 1 == arguments.size()) return fail(error(Code::invalid_argument, "--out needs a value"), kUsage);
        out = arguments[i + 1];
        arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i),
                        arguments.begin() + static_cast<std::ptrdiff_t>(i) + 2);
        break;
    }
    if (Status s = check_place(out, arguments); !s.ok()) return fail(s, kFailed);

    catch_interrupts();
    ProgressBar bar(fmt::format("gate {}", gate->name));
    auto verdict = gate->measure(
        std::move(arguments),
        {.stopped = interrupted, .progress = [&](double part, const std::string& doing) { bar.show(part, doing); }});
    bar.clear();
    if (!verdict.ok()) {
        const Code code = verdict.status().code();
        return fail(verdict.status(), code == Code::cancelled          ? kInterrupted
                                      : code == Code::invalid_argument ? kUsage
                                                                       : kFailed);
    }
    verdict->made = utc_text();
    verdict->sluice = version();
    verdict->commit = backend::commit();
    verdict->kernel = machine::read_facts().kernel_release.value_or("");
    const auto text = machine::gate_json(*verdict);
    if (!text.ok()) return fail(text.status(), kFailed);
    const auto kept = keep(*verdict, *text, out);
    // What was measured is shown even if it cannot be kept.
    const std::string shown = json ? *text : machine::gate_text(*verdict, page_width());
    const bool printed = std::fputs(shown.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
    if (!kept.ok()) return fail(kept.status(), kFailed);
    if (!json) std::fprintf(stderr, "verdict: %s\n", kept->c_str());
    if (!printed) return fail(error(Code::io_error, "standard output is closed or full"), kFailed);
    return verdict->outcome() == machine::Outcome::yes ? kOk : kFailed;
}

}  // namespace sluice::cli
