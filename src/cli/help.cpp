// Owns: every text that describes the program: help, man page, completion, option reference. All are made from the
// command table and the option table, so they cannot disagree.
#include <algorithm>
#include <array>
#include <cstring>

#include "backend/options.h"
#include "base/text.h"
#include "cli/commands.h"

namespace sluice::cli {
namespace {

constexpr size_t kWidth = 100;

constexpr std::array<Command, 18> kCommands{{
    {"run", "-m MODEL [-p PROMPT | -f FILE] [-n N] [options]", "answer one prompt and stop",
     "Loads the model, runs one prompt (from -p, -f or standard input), prints the text as it comes and a summary on "
     "standard error. --temp 0 is greedy. --chat puts the prompt into the model's own chat template. -c defaults to "
     "4096 here.",
     "llama-completion", run_command},
    {"chat", "-m MODEL [options]", "talk with the model in the terminal", "llama-cli with streaming on.", "llama-cli",
     chat_command},
    {"serve", "-m MODEL [--host H] [--port N] [options]", "OpenAI-compatible server with web UI",
     "llama-server with streaming on.", "llama-server", serve_command},
    {"bench", "-m MODEL [options]", "measure speed", "llama-bench with streaming on.", "llama-bench", bench_command},
    {"perplexity", "-m MODEL -f TEXT [options]", "measure quality", "llama-perplexity with streaming on.",
     "llama-perplexity", perplexity_command},
    {"quality",
     "-m MODEL --file TEXT [--with OPTIONS]... [--tokens N] [--prefix N] [--battery FILE|none] [--json] "
     "[--jsonl FILE] [--csv FILE] [options]",
     "what lossy options cost in quality, and what they save",
     "Runs the model without lossy options and then with them (those given, and one more set for each --with "
     "\"OPTIONS\"), each time from an empty cache, and prints one table: perplexity of a held-out text, divergence and "
     "agreement of the next token with the lossless run, tasks with known answers, bytes read per token, speed. The "
     "text goes in token by token, as when generating: the first tokens (--prefix, 32) as a prompt, then those that "
     "are scored (--tokens, 224). --battery takes other tasks: a line each, the prompt, a tab, and answers with | "
     "between them. --json prints the table for programs; --jsonl FILE and --csv FILE write it there, a line as soon "
     "as it is measured (- is standard output, instead of the table). Ctrl-C ends with what was measured until then. "
     "All other options are those of "
     "sluice run, but for those about prompts, templates and sampling.",
     nullptr, quality_command},
    {"inspect", "MODEL [--json] [--cache-mb N]", "what a model is made of and what a cache would hold",
     "Reads headers only. Shows experts, layers, top-k, dense and expert bytes, bytes of one token, and how much of "
     "the model caches of several sizes (or the one given) hold.",
     nullptr, inspect_command},
    {"plan", "MODEL [--ram N|auto] [--cache-mb N] [--json] [options]",
     "what a model would take here, and how fast it would be",
     "Says what stays in memory, how many experts a cache would hold, what a token reads, and how many tokens per "
     "second to expect, as a range with what it rests on: the drive as sluice probe measured it, the processor as "
     "measured now for about a second, and past runs of this model on this machine. Loads no weights and reads no "
     "experts. --ram gives the memory for everything, --cache-mb that for experts alone; -c, -t, -n and all other "
     "options are those of sluice run. Shows how past predictions did. What runs leave for it is described in "
     "docs/plan.md.",
     nullptr, plan_command},
    {"doctor", "[MODEL] [--json] [--no-probe]", "what is wrong with this machine for streaming, and what to change",
     "Looks at processor, memory, kernel, limits and what else runs; with a model also at the file system and drive "
     "under it, which it reads for a few seconds (at most about 256 MiB; --no-probe does not). Each finding says what "
     "was found, what to change and what that gains. Changes nothing. The exit code is 0 if nothing is worse than a "
     "note, else 1.",
     nullptr, doctor_command},
    {"probe", "[-m] MODEL | FILE | DIRECTORY [--full | --seconds N] [--json] [--out FILE]",
     "measure what the drive under a model can do",
     "Reads the model for about 30 seconds (--full: 4 minutes; --seconds: about N) and tells bandwidth and latency by "
     "size of read and reads in flight, by io_uring and by threads, past and through the page cache, on an idle and a "
     "computing machine; how fast reading is at first and how fast it stays; what checksums and fresh memory cost; and "
     "how much later exact reads come beside speculative ones. Sizes are those of the model's experts. In a directory "
     "it first writes a temporary file of 1 GiB (--full: 4 GiB), which has no name and is gone afterwards, however the "
     "program ends. The verdict is kept for the drive (in SLUICE_CACHE_DIR, else in the user's cache directory; "
     "--out FILE: there); --json prints it too. Ctrl-C ends without one.",
     nullptr, probe_command},
    {"report", "RECORD... [-o FILE] [--png FILE] [--text]", "what a run was, as a page with plots or as text",
     "Reads what sluice run --record (or the race of bench/race) wrote and makes one HTML file of it that needs "
     "nothing else: report.html, unless -o names another (- is standard output). Several records are compared: what "
     "differs between them, and their speeds with intervals. --text writes the same in words and tables, as Markdown, "
     "to standard output. --png draws the page with the Chromium or Chrome that is installed. With --text or --png "
     "there is a page only if -o asks for it.",
     nullptr, report_command},
    {"verify", "MODEL|PACK [--quick | --full | --write] [--pack PATH] [--mirror PATH]...",
     "are the experts on the drive still what they were?",
     "--write reads all experts once and writes a checksum for each of their matrices to MODEL.sluice-sums. Later runs "
     "compare: --full (the default) all experts, --quick two of each layer. What differs is named, and the exit code "
     "is 1. Reads from the drive itself, not from the page cache. Checksums of a model that has changed since are "
     "not used. A model that has a pack is compared with the pack's checksums, all of its bytes, and so are the pack "
     "and the copies that --mirror names.",
     nullptr, verify_command},
    {"pack", "MODEL [--layout layer|component] [--out PATH] [--split SIZE] [--reclaim [--yes]]",
     "copy a model so that each expert is read in one aligned piece",
     "Writes MODEL.sluice and its data files MODEL.sluice.1 ...: every matrix of every expert at a multiple of 4096 "
     "bytes, with a checksum, and all else that sluice unpack needs to give the model back. Later runs take from there "
     "what is damaged in the model's own files, or all experts with --store pack. It can be interrupted; the next call "
     "goes on. --layout: of each layer the matrices before the activation first (component, the default), or expert "
     "after expert (layer), which was slower where it was measured. --split: no data file larger than this. "
     "--reclaim takes each layer out of the model's own files as soon as the pack has it and it was read back, so that "
     "little more room is needed than one layer; afterwards only Sluice can run the model, from both. It asks, or "
     "wants --yes.",
     nullptr, pack_command},
    {"unpack", "MODEL|PACK [--out DIR | --in-place] [--pack PATH]", "a model's own files back, from its pack",
     "Writes the model's files, byte for byte, into DIR (or beside the pack, if they are not there), and compares what "
     "was written. --in-place fills the holes of a model that was reclaimed, also where that was interrupted. --pack "
     "names a pack that does not lie beside the model.",
     nullptr, unpack_command},
    {"repair", "MODEL|PACK [--from COPY]... [--pack PATH] [--yes]", "mend what sluice verify finds",
     "Looks at all parts of the model and of its pack, and writes those that are damaged anew from the other of the "
     "two, or from the copies that --from names (of the model or of the pack): only bytes whose checksum is right. For "
     "what nobody has it says which bytes of which file to fetch. --yes: even if so much of the model differs (more "
     "than one part in 64) that it may be another one.",
     nullptr, repair_command},
    {"gate", "GATE MODEL|TRACE... [options] [--out FILE] [--json]",
     "does something hold for a model on this machine? yes or no",
     "Measures one question, prints what was found check by check, and keeps the verdict (in SLUICE_CACHE_DIR, else in "
     "the user's cache directory; --out FILE: there) with the digests of what it is about. The exit code is 0 for yes "
     "and 1 for no, or if it cannot be told. No verdict turns anything on. Ctrl-C ends without one.",
     nullptr, gate_command},
    {"predict", "train MODEL FEATURES... -o FILE [--rank N] [--tokens N] [-t N] [--json]",
     "train guesses of what each layer's router will choose",
     "Reads what --route-features wrote while the model ran (some thousand tokens, of text like what it will be used "
     "for) and learns for each layer how the state that one router is given becomes what the next one is given: each "
     "number scaled and shifted, and --rank (32) directions that add to all. Takes seconds to minutes. The last fifth "
     "of the tokens is held out: of the experts chosen for these it says how many the next layer's router names on the "
     "state as it is (stale), on the corrected one (trained), and on its own (ctrl: less than 100 is a rule of the "
     "router that training does not know). A layer that gains nothing is left as it is. FILE is for --predict-model. "
     "--tokens: at most so many are read (8192). -t: threads. --json prints the result for programs.",
     nullptr, predict_command},
    {"replay",
     "TRACE... [--policy P,...] [--slots N,...] [--budget SIZE,...] [--know-layers N,...] [--know-tokens N,...] "
     "[--profile-of TRACE] [--skip N] [--tokens N] [--device auto|RATE,LATENCY,DEPTH] [--compute MS,MS] "
     "[--foretell-layers N,...] [--prompt guests|members] [--tune NAME=X,...] [--model MODEL] [--csv]",
     "what caches would have done with recorded routes",
     "Reads what --route-trace wrote (or - for standard input) and runs the real cache over it, for each policy (or "
     "all) and each budget: --slots per layer, shared by all layers (numbers and ranges: 4-32), or --budget in bytes, "
     "cut up as in the engine. Beside them stands the best that any cache could do, which knows the future: one whose "
     "newest expert may go at once, and one whose newest stays. --know-layers and --know-tokens add the default policy "
     "with exact knowledge of what the next N layers, or each layer in the next N tokens, will choose. --profile-of "
     "adds it with the profile (--profile) that a run over another trace would have left. --skip leaves the prompt and "
     "the first N tokens of decode out, or to the profile, and --tokens all after the next N. --prompt members lets "
     "the prompt's experts push out all others. --tune changes the default policy: short=, long=, share=, phase=, "
     "prompt=. --model takes sizes of experts from a model where the trace has none. --csv: a row for each trace, "
     "policy and budget, with bytes and evictions.\n\n"
     "--device tells times instead: the engine's cache and scheduler run on a simulated drive, with a clock that only "
     "it and --compute move (milliseconds of a token for all but its experts, and for these): what a token waits, and "
     "what it takes. The drive is the one that was probed under the model, or the trace (auto), or one of RATE bytes a "
     "second, LATENCY of a read (80us) and DEPTH reads at once. --foretell-layers adds the default policy where the "
     "scheduler is told, exactly, what the next N layers will want, and reads it where there is room. The bound below "
     "is the fewest bytes that any cache could read at the drive's full speed, or the arithmetic: nothing is faster.",
     nullptr, replay_command},
}};

// The flags that the usage line of a command names; of a stock tool also the streaming options that mean something to
// it, and the most used of its own.
std::string flags_of(const Command& command) {
    std::string flags;
    const auto add = [&](std::string_view flag) { flags += fmt::format("{}{}", flags.empty() ? "" : " ", flag); };
    const std::string_view usage = command.arguments;
    for (size_t at = 0; (at = usage.find('-', at)) != std::string_view::npos;) {
        const size_t end = std::min(usage.find_first_of(" ]|", at), usage.size());
        if (at == 0 || usage[at - 1] == ' ' || usage[at - 1] == '[') add(usage.substr(at, end - at));
        at = end;
    }
    if (command.stock == nullptr) return flags;
    add("--model -c -t -b -ub -fa --temp --seed --top-k");
    if (std::string_view(command.name) == "run") add("--chat");
    if (std::string_view(command.name) == "serve") add("-np");
    for (const backend::Option& o : backend::options()) {
        if (!backend::works_in(o.where, place_of(command.name))) continue;
        add(o.flag);
        if (const std::string off = backend::off_flag(o); !off.empty()) add(off);
    }
    return flags;
}

// A leading "-" must not be taken for a roff hyphen, nor a leading "." for a request.
std::string roff(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '-') {
            out += "\\-";
        } else if (c == '\\') {
            out += "\\e";
        } else {
            out += c;
        }
    }
    return out.starts_with('.') ? "\\&" + out : out;
}

}  // namespace

std::span<const Command> commands() {
    return kCommands;
}

const Command* find_command(const std::string& name) {
    for (const Command& c : kCommands) {
        if (name == c.name) return &c;
    }
    return nullptr;
}

std::string main_help() {
    std::string out =
        "Sluice runs Mixture-of-Experts models that are bigger than memory: it streams their experts from disk inside\n"
        "llama.cpp. Results are bit-identical to llama.cpp with everything in memory.\n\nusage: sluice COMMAND "
        "[options]\n\n";
    for (const Command& c : kCommands) out += fmt::format("  {:<12}{}\n", c.name, c.summary);
    out += "\n  sluice COMMAND --help    options of a command\n  sluice --version\n";
    return out;
}

std::string help_text(const Command& command) {
    std::string out =
        fmt::format("usage: sluice {} {}\n\n{}", command.name, command.arguments, wrap_text(command.help, 0, kWidth));
    if (command.stock != nullptr) {
        out += "\nStreaming options:\n\n" + backend::options_help(kWidth, place_of(command.name));
        out += fmt::format("\nAll options of {} work too; they follow.\n", command.stock);
    }
    return out;
}

std::string man_page() {
    std::string out = fmt::format(
        ".TH SLUICE 1 \"\" \"sluice {}\" \"User Commands\"\n.SH NAME\nsluice \\- run Mixture\\-of\\-Experts "
        "models bigger than memory\n.SH SYNOPSIS\n",
        version());
    for (const Command& c : kCommands) out += fmt::format(".B sluice {}\n{}\n.br\n", c.name, roff(c.arguments));
    out +=
        ".SH DESCRIPTION\nSluice streams the experts of a GGUF model from disk inside llama.cpp. Results are "
        "bit\\-identical to llama.cpp with everything in memory.\n.SH COMMANDS\n";
    for (const Command& c : kCommands)
        out += fmt::format(".TP\n.B {}\n{}: {}\n", c.name, roff(c.summary), roff(c.help));
    out += ".SH STREAMING OPTIONS\nThe variable works for every program that loads the plug\\-in; the flag wins.\n";
    for (const backend::Option& o : backend::options()) {
        const std::string off = backend::off_flag(o);
        out += fmt::format(".TP\n.BR {} {}\n{} Default: {}. Variable: {}.\n", roff(o.flag),
                           o.value_name != nullptr ? "\" \" " + roff(o.value_name)
                           : off.empty()           ? ""
                                                   : "\", \" " + roff(off),
                           roff(o.help), roff(o.default_text), o.variable);
    }
    out +=
        ".SH EXIT STATUS\n0 well, 1 failed, 2 wrong command line, 130 interrupted.\n.SH SEE ALSO\nllama\\-server, "
        "llama\\-cli, llama\\-bench, llama\\-perplexity\n";
    return out;
}

std::string bash_completion() {
    std::string names;
    for (const Command& c : kCommands) names += fmt::format("{}{}", names.empty() ? "" : " ", c.name);
    std::string words;
    for (const backend::Option& o : backend::options()) {
        const std::string values = o.value_name != nullptr ? o.value_name : "";
        if (values.find('|') == std::string::npos || values[0] == 'N') continue;
        std::string list = values;
        for (char& ch : list) ch = ch == '|' ? ' ' : ch;
        std::erase_if(list, [](char ch) { return ch == '[' || ch == ']'; });
        // A place for any path among the words.
        const size_t path = list.find(" PATH");
        if (path != std::string::npos) list.erase(path);
        words += fmt::format("        {}) COMPREPLY=($(compgen {}-W \"{}\" -- \"$cur\")); return ;;\n", o.flag,
                             path != std::string::npos ? "-f " : "", list);
    }
    std::string by_command;
    for (const Command& c : kCommands) by_command += fmt::format("        {}) flags=\"{}\" ;;\n", c.name, flags_of(c));
    return fmt::format(
        "# bash completion for sluice\n_sluice() {{\n    local cur=${{COMP_WORDS[COMP_CWORD]}} "
        "prev=${{COMP_WORDS[COMP_CWORD-1]}} flags=\n"
        "    if [ \"$COMP_CWORD\" -eq 1 ]; then COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$cur\")); return; "
        "fi\n"
        "    case $prev in\n{}        -m|--model|-f|--file) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n "
        "   esac\n    case ${{COMP_WORDS[1]}} in\n{}    esac\n"
        "    case $cur in\n        -*) COMPREPLY=($(compgen -W \"--help $flags\" -- \"$cur\")) ;;\n"
        "        *) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n    esac\n}}\ncomplete -o filenames -F _sluice sluice\n",
        names, words, by_command);
}

std::string options_markdown() {
    std::string out =
        "# Streaming options\n\nMade by `sluice --options-markdown` from the table in `src/backend/options.cpp`; do "
        "not edit.\n\n"
        "Every option is a flag of the program `sluice`, an environment variable (for stock llama.cpp tools that load "
        "the\n"
        "plug-in, and for `sluice` where no flag is given), and a field of `sluice::Config`.\n\n"
        "| flag | variable | value | default | meaning |\n| --- | --- | --- | --- | --- |\n";
    for (const backend::Option& o : backend::options()) {
        std::string values = o.value_name != nullptr ? o.value_name : "(switch; variable: 1 or 0)";
        for (size_t at = 0; (at = values.find('|', at)) != std::string::npos; at += 2) values.replace(at, 1, "\\|");
        const std::string off = backend::off_flag(o);
        out += fmt::format("| `{}`{} | `{}` | {} | {} | {} |\n", o.flag, off.empty() ? "" : fmt::format(", `{}`", off),
                           o.variable, values, o.default_text, o.help);
    }
    return out;
}

}  // namespace sluice::cli
