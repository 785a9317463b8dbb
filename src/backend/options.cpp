#include "backend/options.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <iterator>
#include <vector>

#include "base/bytes.h"
#include "base/same_file.h"
#include "base/text.h"
#include "cache/process_need.h"

namespace sluice::backend {
namespace {

Status bad_value(std::string_view text, const char* wanted) {
    return error(Code::invalid_argument, "\"{}\" is not {}", text, wanted);
}

// A size for a field that may be unset, which `unset` says.
template <std::optional<uint64_t> Config::*field>
Status set_size(Config& config, std::string_view text, std::string_view unset) {
    if (text == unset) {
        (config.*field).reset();
        return {};
    }
    const auto bytes = parse_bytes(text, MiB);
    if (!bytes || *bytes == 0)
        return error(Code::invalid_argument, "\"{}\" is not a size: {}, or MiB as in 500, or with a suffix as in 8G",
                     text, unset);
    config.*field = bytes;
    return {};
}
std::string show_mib(const std::optional<uint64_t>& bytes, const char* unset) {
    if (!bytes) return unset;
    return *bytes % MiB == 0 ? fmt::format("{}", *bytes / MiB) : fmt::format("{}", to_mib(*bytes));
}

// Words for an enum, in one place for parsing, messages and showing.
template <typename E>
struct Word {
    const char* text;
    E value;
};

template <typename E, size_t N>
Status set_word(E& field, std::string_view text, const std::array<Word<E>, N>& words) {
    std::string wanted = "one of";
    for (const Word<E>& w : words) {
        if (text == w.text) {
            field = w.value;
            return {};
        }
        wanted += wanted.size() > 6 ? ", " : " ";
        wanted += w.text;
    }
    return bad_value(text, wanted.c_str());
}

template <typename E, size_t N>
std::string get_word(E value, const std::array<Word<E>, N>& words) {
    for (const Word<E>& w : words) {
        if (w.value == value) return w.text;
    }
    return "";
}

constexpr std::array<Word<IoEngine>, 4> kEngines{{{"auto", IoEngine::automatic},
                                                  {"io_uring", IoEngine::io_uring},
                                                  {"pread", IoEngine::pread},
                                                  {"mmap", IoEngine::mmap}}};
constexpr std::array<Word<DenseWeights>, 3> kDense{
    {{"anon", DenseWeights::anon}, {"warm", DenseWeights::warm}, {"mmap", DenseWeights::mmap}}};
constexpr std::array<Word<CachePolicy>, 3> kPolicies{
    {{"reuse", CachePolicy::reuse}, {"frequency", CachePolicy::frequency}, {"lru", CachePolicy::lru}}};
constexpr std::array<Word<VerifyReads>, 3> kVerify{
    {{"once", VerifyReads::once}, {"always", VerifyReads::always}, {"never", VerifyReads::never}}};
constexpr std::array<Word<Verbosity>, 4> kVerbosities{
    {{"error", Verbosity::error}, {"warn", Verbosity::warn}, {"info", Verbosity::info}, {"debug", Verbosity::debug}}};
constexpr std::array<Word<PrefillMode>, 3> kPrefill{
    {{"auto", PrefillMode::automatic}, {"macro", PrefillMode::macro}, {"micro", PrefillMode::micro}}};
constexpr std::array<Word<RouteAheadRouter>, 2> kAheadRouter{
    {{"8-bit", RouteAheadRouter::small}, {"full", RouteAheadRouter::full}}};
constexpr std::array<Word<RouteAheadWeights>, 2> kAheadWeights{
    {{"router", RouteAheadWeights::router}, {"predicted", RouteAheadWeights::predicted}}};
// "1" and "0" first: they are what a switch shows.
constexpr std::array<Word<bool>, 4> kSwitch{{{"1", true}, {"0", false}, {"on", true}, {"off", false}}};

// A switch that turns a field off.
template <bool Config::*field>
Status set_off(Config& config, std::string_view text) {
    bool off = false;
    Status s = set_word(off, text, kSwitch);
    config.*field = !off;
    return s;
}
template <bool Config::*field>
std::string get_off(const Config& config) {
    return get_word(!(config.*field), kSwitch);
}

template <typename N>
Status set_number(N& field, std::string_view text, N least, N most, const char* wanted) {
    N n = 0;  // not a number is neither at least nor at most
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (ec != std::errc() || end != text.data() + text.size() || !(n >= least && n <= most))
        return bad_value(text, wanted);
    field = n == 0 ? N{0} : n;  // -0 is 0, which is off
    return {};
}

Status set_features_max(Config& config, std::string_view text) {
    const auto bytes = parse_bytes(text, MiB);
    if (!bytes || *bytes < MiB) return bad_value(text, "a size of at least 1 MiB: MiB as in 500, or as in 2G");
    config.route_features_bytes = *bytes;
    return {};
}

// One path, or several with colons between them.
Status add_mirrors(Config& config, std::string_view text) {
    while (true) {
        const size_t colon = text.find(':');
        const std::string_view path = text.substr(0, colon);
        if (path.empty()) return bad_value(text, "a path, or paths with colons between them");
        config.mirrors.emplace_back(path);
        if (colon == std::string_view::npos) return {};
        text.remove_prefix(colon + 1);
    }
}

std::string get_mirrors(const Config& config) {
    return fmt::format("{}", fmt::join(config.mirrors, ":"));
}

// Fields whose text is their value.
template <std::string Config::*field>
Status set_path(Config& config, std::string_view text) {
    if (text.empty()) return bad_value(text, "the name of a file");
    config.*field = text;
    return {};
}
template <std::string Config::*field>
std::string get_path(const Config& config) {
    return config.*field;
}

// Guesses of one kind, acted on always, never, or while that pays.
bool is_auto(const Config& config, bool on) {
    return on && config.prefetch_auto;
}

Status set_prefetch(Config& config, std::string_view text) {
    if (config.prefetch > 0) config.prefetch_auto = false;
    if (text == "off") text = "0";
    if (text != "auto") return set_number(config.prefetch, text, 0U, 64U, "auto, off or a number from 0 to 64");
    config.prefetch = 1;
    config.prefetch_auto = true;
    return {};
}

Status set_predict_prefetch(Config& config, std::string_view text) {
    if (config.predict_prefetch) config.prefetch_auto = false;
    if (text == "auto") {
        config.predict_prefetch = config.prefetch_auto = true;
        return {};
    }
    bool on = false;
    if (!set_word(on, text, kSwitch).ok()) return bad_value(text, "one of on, off, auto");
    config.predict_prefetch = on;
    return {};
}

std::string get_predict_prefetch(const Config& config) {
    if (is_auto(config, config.predict_prefetch)) return "auto";
    return config.predict_prefetch ? "on" : "off";
}

constexpr Option kOptions[] = {
    {"--ram", "SLUICE_RAM", "SIZE|auto", "auto",
     "Memory for the whole process: weights, context, buffers and experts; in MiB, or with a suffix as in 8G. Experts "
     "get what the rest leaves, step down when the rest grows, and what cannot fit is refused with the sum. auto: no "
     "such number, see --cache-mb.",
     [](Config& c, std::string_view t) { return set_size<&Config::ram_bytes>(c, t, "auto"); },
     [](const Config& c) { return show_mib(c.ram_bytes, "auto"); }},
    {"--cache-mb", "SLUICE_CACHE_MB", "N|auto", "auto",
     "Memory for experts, in MiB (decimals and the suffixes K, M and G are understood). At least one expert must fit; "
     "more means fewer reads. auto takes what is free (or what --ram leaves) less a reserve, at most what all experts "
     "need, and steps down while others need the memory.",
     [](Config& c, std::string_view t) { return set_size<&Config::cache_bytes>(c, t, "auto"); },
     [](const Config& c) { return show_mib(c.cache_bytes, "auto"); }},
    {"--cache-floor-mb", "SLUICE_CACHE_FLOOR_MB", "N", "none",
     "With --cache-mb auto, experts keep this much however short memory is.",
     [](Config& c, std::string_view t) { return set_size<&Config::cache_floor_bytes>(c, t, "none"); },
     [](const Config& c) { return show_mib(c.cache_floor_bytes, ""); }},
    {"--cache-ceil-mb", "SLUICE_CACHE_CEIL_MB", "N", "none", "With --cache-mb auto, experts never take more than this.",
     [](Config& c, std::string_view t) { return set_size<&Config::cache_ceil_bytes>(c, t, "none"); },
     [](const Config& c) { return show_mib(c.cache_ceil_bytes, ""); }},
    {"--cache-policy", "SLUICE_CACHE_POLICY", "reuse|frequency|lru", "reuse",
     "Which expert gives its slot away when one is needed. reuse: the one whose next use is farthest, judged by how "
     "often and how lately it was used and when its layer's turn is. frequency: the one used least, where older uses "
     "count less. lru: the one used longest ago; a cache smaller than one token's experts hits nothing with it.",
     [](Config& c, std::string_view t) { return set_word(c.cache_policy, t, kPolicies); },
     [](const Config& c) { return get_word(c.cache_policy, kPolicies); }},
    {"--profile", "SLUICE_PROFILE", "FILE|auto|off", "off",
     "Remember between runs how often each expert was used, so that the cache knows from the first token what is worth "
     "keeping: in FILE (at most 1 MiB), or with auto in one for each model in the user's cache directory. Read when a "
     "model runs first, replaced when it is freed. Never changes results. Of no use with --cache-policy lru.",
     set_path<&Config::profile>, get_path<&Config::profile>},
    {"--io-threads", "SLUICE_IO_THREADS", "N", "8",
     "Reads in flight at the drive, 1 to 64: depth of the io_uring ring, or threads of the pread pool.",
     [](Config& c, std::string_view t) { return set_number(c.io_threads, t, 1U, 64U, "a number from 1 to 64"); },
     [](const Config& c) { return fmt::format("{}", c.io_threads); }},
    {"--io-engine", "SLUICE_IO_ENGINE", "auto|io_uring|pread|mmap", "auto",
     "How reads reach the kernel. auto prefers io_uring and falls back to a pool of threads where the kernel refuses "
     "it. mmap copies from a mapping of the file, through the page cache: slower, for comparison only.",
     [](Config& c, std::string_view t) { return set_word(c.io_engine, t, kEngines); },
     [](const Config& c) { return get_word(c.io_engine, kEngines); }},
    {"--no-odirect", "SLUICE_NO_ODIRECT", nullptr, "off",
     "Read experts through the page cache instead of directly from the drive.", set_off<&Config::direct_io>,
     get_off<&Config::direct_io>},
    {"--store", "SLUICE_STORE", "auto|gguf|pack|PATH", "auto",
     "Where experts are read from. auto: from the model's own files; what is damaged there comes from the pack beside "
     "the model (MODEL.sluice, which sluice pack makes), and so does everything if the files' experts were taken out. "
     "gguf: the same, but never all from the pack. pack: from that pack, the files in reserve. Else the name of a pack "
     "that lies elsewhere.",
     set_path<&Config::store>, get_path<&Config::store>},
    {"--verify-reads", "SLUICE_VERIFY_READS", "always|once|never", "once",
     "Compare what is read with the model's checksums, if it has any (sluice verify --write makes them), before it is "
     "computed with. once: the first read of each matrix, and what had to be read again after a failure. Wrong bytes "
     "are read again, then taken from another copy if there is one.",
     [](Config& c, std::string_view t) { return set_word(c.verify_reads, t, kVerify); },
     [](const Config& c) { return get_word(c.verify_reads, kVerify); }},
    {"--mirror", "SLUICE_MIRROR", "PATH", "none",
     "A copy of the model (of a split one, its first file) or of its pack, on another drive. Reads are shared out by "
     "speed; a drive that keeps failing is not used any more. May be repeated; in the variable a colon stands between "
     "paths.",
     add_mirrors, get_mirrors},
    {"--overlap", "SLUICE_OVERLAP", nullptr, "on",
     "Compute with the experts that are there while others are still being read. --no-overlap turns it off.",
     [](Config& c, std::string_view t) { return set_word(c.overlap, t, kSwitch); },
     [](const Config& c) { return get_word(c.overlap, kSwitch); }},
    {"--no-overlap", "SLUICE_NO_OVERLAP", nullptr, "off",
     "Wait until all experts of a layer are there before any of them is computed with: for comparison.",
     set_off<&Config::overlap>, get_off<&Config::overlap>},
    {"--wave", "SLUICE_WAVE", "auto|N", "auto",
     "With overlap, how many experts a launch waits for while others are read, 1 to 64. It does not wait for the last "
     "one alone, whose read may be stuck. auto computes each as it comes.",
     [](Config& c, std::string_view t) {
         if (t == "auto") {
             c.wave = 0;
             return Status();
         }
         return set_number(c.wave, t, 1U, 64U, "auto or a number from 1 to 64");
     },
     [](const Config& c) { return c.wave == 0 ? "auto" : fmt::format("{}", c.wave); }},
    {"--prefill-mode", "SLUICE_PREFILL_MODE", "auto|macro|micro", "auto",
     "How a prompt's experts are read. micro: those that the layer's router chose, each once. macro: all experts of "
     "the next layer while this one computes, before its router has run; more bytes, but reading never pauses. auto: "
     "for each layer and batch what is expected to be faster, from how many experts such batches chose, the drive's "
     "speed and the time that computing took; of a layer so much is read ahead that at most 2 % more is read than is "
     "chosen.",
     [](Config& c, std::string_view t) { return set_word(c.prefill_mode, t, kPrefill); },
     [](const Config& c) { return get_word(c.prefill_mode, kPrefill); }},
    {"--prefetch", "SLUICE_PREFETCH", "N|auto|off", "0",
     "In decode, for each of the next N layers, what the last token chose there is expected again: it keeps its slot, "
     "or is read while the drive has nothing else to do. Results are the same bit for bit. Reads early only from a "
     "drive that sluice probe has measured, and costs bandwidth for what is not chosen again. auto: the next layer "
     "only, and only while tokens that do so were measured to wait less than others. 0 or off: none.",
     set_prefetch, [](const Config& c) { return is_auto(c, c.prefetch > 0) ? "auto" : fmt::format("{}", c.prefetch); }},
    {"--predict-prefetch", "SLUICE_PREDICT_PREFETCH", "[on|off|auto]", "off",
     "In decode, ask the next layer's router about the hidden state of the layer at hand: what it says keeps its slot, "
     "or is read while the drive has nothing else to do. Results are the same bit for bit. As for --prefetch, reading "
     "early needs sluice probe. auto: only while tokens that do so were measured to wait less than others.",
     set_predict_prefetch, get_predict_prefetch},
    {"--predict-spec-max", "SLUICE_PREDICT_SPEC_MAX", "N", "2",
     "With --predict-prefetch, how many experts of a layer are read early at most. 0: none, what is there is kept.",
     [](Config& c, std::string_view t) { return set_number(c.predict_spec_max, t, 0U, 64U, "a number from 0 to 64"); },
     [](const Config& c) { return fmt::format("{}", c.predict_spec_max); }},
    {"--route-ahead", "SLUICE_ROUTE_AHEAD", "N", "0",
     "Lossy: while generating, each layer takes the experts that its router ranks first for the hidden state of N "
     "layers earlier, so that they are known, and read, that much earlier. Which experts that are does not depend on "
     "timing or memory. The first N layers, prompts and the first token after one stay with their routers. 0: off. "
     "docs/prefetch.md.",
     [](Config& c, std::string_view t) { return set_number(c.route_ahead, t, 0U, 64U, "a number from 0 to 64"); },
     [](const Config& c) { return fmt::format("{}", c.route_ahead); }},
    {"--route-ahead-router", "SLUICE_ROUTE_AHEAD_ROUTER", "8-bit|full", "8-bit",
     "With --route-ahead, what early rankings are made by. 8-bit: large routers (128 KiB or more) by a copy in 8 bits, "
     "which takes less time; near ties may be ranked otherwise. full: as the model has them.",
     [](Config& c, std::string_view t) { return set_word(c.route_ahead_router, t, kAheadRouter); },
     [](const Config& c) { return get_word(c.route_ahead_router, kAheadRouter); }},
    {"--route-ahead-weights", "SLUICE_ROUTE_AHEAD_WEIGHTS", "router|predicted", "router",
     "With --route-ahead, how the experts are weighed. router: as the layer's router weighs them, when it comes to "
     "them. predicted: as the early ranking did, which saves running the router twice.",
     [](Config& c, std::string_view t) { return set_word(c.route_ahead_weights, t, kAheadWeights); },
     [](const Config& c) { return get_word(c.route_ahead_weights, kAheadWeights); }},
    {"--dense-weights", "SLUICE_DENSE_WEIGHTS", "anon|warm|mmap", "anon",
     "Where the always-needed weights live. anon: read once into memory of our own, which memory pressure cannot drop. "
     "warm: page cache, read ahead at load. mmap: page cache, read when touched.",
     [](Config& c, std::string_view t) { return set_word(c.dense_weights, t, kDense); },
     [](const Config& c) { return get_word(c.dense_weights, kDense); }},
    {"--predict-log", "SLUICE_PREDICT_LOG", nullptr, "off",
     "Guess in several ways which experts each layer will choose, compare with what it chooses, and print in the end "
     "how "
     "often each way was right (docs/predict.md). Changes neither results nor reads; the run is slower for it.",
     [](Config& c, std::string_view t) { return set_word(c.predict_log, t, kSwitch); },
     [](const Config& c) { return get_word(c.predict_log, kSwitch); }},
    {"--predict-model", "SLUICE_PREDICT_MODEL", "FILE", "none",
     "What sluice predict train has made for this model: --predict-prefetch guesses with it, and --predict-log says "
     "how "
     "often it was right beside the others. Another model's file is refused. Changes no results.",
     set_path<&Config::predict_model>, get_path<&Config::predict_model>},
    {"--drop-cold-experts", "SLUICE_DROP_COLD_EXPERTS", "F", "0",
     "Lossy: while generating, leave out an expert that is not in memory if its weight is less than F times an equal "
     "part (1 / top-k). The heaviest always stays, and the others take over the weight. 0 is off; 0.5 is careful, from "
     "top-k on all but one may go. docs/lossy.md.",
     [](Config& c, std::string_view t) {
         return set_number(c.drop_cold_experts, t, 0.0, 1024.0, "a number from 0 to 1024");
     },
     [](const Config& c) { return fmt::format("{}", c.drop_cold_experts); }},
    {"--expert-substitute", "SLUICE_EXPERT_SUBSTITUTE", "T", "0",
     "Lossy: while generating, instead of an expert that is not in memory take one that is and that the router did not "
     "choose, if the router's weight for it is at most the share T less: 0.1 allows nine tenths. It gets its own "
     "weight. "
     "0 is off; comes before --drop-cold-experts. docs/lossy.md.",
     [](Config& c, std::string_view t) { return set_number(c.expert_substitute, t, 0.0, 1.0, "a number from 0 to 1"); },
     [](const Config& c) { return fmt::format("{}", c.expert_substitute); }},
    {"--n-expert-used", "SLUICE_N_EXPERT_USED", "N", "0",
     "Lossy: use N experts per token and layer instead of as many as the model was trained with, for prompts too. 0: "
     "as "
     "the model says. The same as llama.cpp's --override-kv ARCH.expert_used_count=int:N, which is what to give a "
     "program that loads the plug-in.",
     [](Config& c, std::string_view t) { return set_number(c.n_expert_used, t, 0U, 65536U, "a number from 0"); },
     [](const Config& c) { return fmt::format("{}", c.n_expert_used); }},
    {"--deterministic", "SLUICE_DETERMINISTIC", nullptr, "off",
     "Where a lossy option asks which experts are in memory, answer with what a cache of --cache-mb would hold after "
     "all tokens before this one, whatever the drive, predictions and stopped requests did to the real one: the same "
     "tokens give the same text.",
     [](Config& c, std::string_view t) { return set_word(c.deterministic, t, kSwitch); },
     [](const Config& c) { return get_word(c.deterministic, kSwitch); }},
    {"--record", "SLUICE_RECORD", "FILE", "none",
     "Write the run record: one JSON line per token, with where its time and bytes went. sluice report makes a page of "
     "it.",
     set_path<&Config::record>, get_path<&Config::record>},
    {"--csv", "SLUICE_CSV", "FILE", "none", "The same as a table, for a spreadsheet.", set_path<&Config::csv>,
     get_path<&Config::csv>},
    {"--route-trace", "SLUICE_ROUTE_TRACE", "FILE", "none",
     "Write every choice of every router: layer, rank, expert, weight, and whether it was resident.",
     set_path<&Config::route_trace>, get_path<&Config::route_trace>},
    {"--route-features", "SLUICE_ROUTE_FEATURES", "FILE", "none",
     "Write what each layer's router is given and what it chooses, for every token that is computed alone (while "
     "generating, and of prompts with -b 1 -ub 1): what sluice predict train learns from. Two bytes per number: some "
     "100 KiB per token. Results are the same; the run is slower for it.",
     set_path<&Config::route_features>, get_path<&Config::route_features>},
    {"--route-features-max", "SLUICE_ROUTE_FEATURES_MAX", "SIZE", "1024",
     "That file grows no larger; what would not fit is left out, which is said. In MiB, or with a suffix as in 2G.",
     set_features_max, [](const Config& c) { return show_mib(c.route_features_bytes, ""); }},
    {"--io-trace", "SLUICE_IO_TRACE", "FILE", "none",
     "Write every read of an expert with its offset, size and latency.", set_path<&Config::io_trace>,
     get_path<&Config::io_trace>},
    {"--compute-trace", "SLUICE_COMPUTE_TRACE", "FILE", "none",
     "Write the time of every node of the graph. Tells router and shared experts from the rest in all outputs. The run "
     "is slower for it.",
     set_path<&Config::compute_trace>, get_path<&Config::compute_trace>},
    {"--compute-trace-layers", "SLUICE_COMPUTE_TRACE_LAYERS", "FILE", "none",
     "Write the time of every layer, with less disturbance.", set_path<&Config::compute_trace_layers>,
     get_path<&Config::compute_trace_layers>},
    {"--token-trace", "SLUICE_TOKEN_TRACE", "FILE", "none",
     "Write one token's reads, computes and waits for the Perfetto trace viewer (or chrome://tracing).",
     set_path<&Config::token_trace>, get_path<&Config::token_trace>},
    {"--token-trace-at", "SLUICE_TOKEN_TRACE_AT", "N", "8", "Which generated token that is, counted from 0.",
     [](Config& c, std::string_view t) {
         return set_number(c.token_trace_at, t, uint64_t{0}, uint64_t{1} << 32U, "a number from 0");
     },
     [](const Config& c) { return fmt::format("{}", c.token_trace_at); }},
    {"--progress", "SLUICE_PROGRESS", nullptr, "off",
     "Print one line of JSON per token on standard output instead of the text, for a program that reads it.",
     [](Config& c, std::string_view t) { return set_word(c.progress, t, kSwitch); },
     [](const Config& c) { return get_word(c.progress, kSwitch); }, Where::run_only},
    {"--live", "SLUICE_LIVE", nullptr, "off",
     "Show speed, where the time goes, the cache by layer and the drive on the terminal while running. Shows nothing "
     "where standard error is no terminal.",
     [](Config& c, std::string_view t) { return set_word(c.live, t, kSwitch); },
     [](const Config& c) { return get_word(c.live, kSwitch); }, Where::run_only},
    {"--metrics-port", "SLUICE_METRICS_PORT", "N", "none",
     "Serve Prometheus metrics of the streaming at http://127.0.0.1:N/metrics. The server's own metrics are on its own "
     "port (--metrics).",
     [](Config& c, std::string_view t) {
         return set_number(c.metrics_port, t, uint16_t{1}, uint16_t{65535}, "a port from 1 to 65535");
     },
     [](const Config& c) { return c.metrics_port == 0 ? "" : fmt::format("{}", c.metrics_port); }, Where::serve_only},
    {"--no-history", "SLUICE_NO_HISTORY", nullptr, "off",
     "sluice run leaves no line about this run (its speed, cache and threads; no text and no names) for sluice plan. "
     "Other programs never do.",
     set_off<&Config::history>, get_off<&Config::history>},
    {"--sluice-log", "SLUICE_LOG", "error|warn|info|debug", "info",
     "How much Sluice says on standard error. Where llama.cpp is asked for everything (-v, -lv 5) and this is not "
     "given, "
     "it is debug.",
     [](Config& c, std::string_view t) { return set_word(c.verbosity, t, kVerbosities); },
     [](const Config& c) { return get_word(c.verbosity, kVerbosities); }},
};

constexpr std::string Config::*kOutputFiles[] = {
    &Config::record,   &Config::csv,           &Config::route_trace,          &Config::route_features,
    &Config::io_trace, &Config::compute_trace, &Config::compute_trace_layers, &Config::token_trace};

// What changes which experts run. In the order in which outputs name them.
constexpr std::array<const char*, 6> kLossy{"--n-expert-used",       "--route-ahead",       "--route-ahead-router",
                                            "--route-ahead-weights", "--drop-cold-experts", "--expert-substitute"};

// Some of them depend on what is in memory.
bool asks_memory(const Config& config) {
    return config.drop_cold_experts > 0 || config.expert_substitute > 0;
}

const char* where_it_works(Where where) {
    return where == Where::run_only ? "sluice run" : "sluice serve";
}

Status no_effect(const std::string& name, Where where) {
    return error(Code::invalid_argument, "{} has no effect here, only in {}: leave it out", name,
                 where_it_works(where));
}

// Variables that belong to the set-up and the build, and are not options of a run.
constexpr std::array<const char*, 5> kOtherVariables{"SLUICE_CACHE_DIR", "SLUICE_LLAMA_CPP_SOURCE", "SLUICE_JOBS",
                                                     "SLUICE_LLAMA_CPP_BUILD", "SLUICE_SERVE_CHILD"};

// Options of the stock tools whose value may look like one of ours.
constexpr std::array<std::string_view, 10> kFreeText{"-p",     "--prompt", "-sys", "--system-prompt",  "-f",
                                                     "--file", "-m",       "-r",   "--reverse-prompt", "--model"};

// Of these, the ones whose value is no file's name.
bool is_text(std::string_view flag) {
    constexpr std::array<std::string_view, 4> kFiles{"-f", "--file", "-m", "--model"};
    return takes_free_text(flag) && std::find(kFiles.begin(), kFiles.end(), flag) == kFiles.end();
}

// A switch that may also be given one of a few words.
bool may_be_bare(const Option& option) {
    return option.value_name != nullptr && option.value_name[0] == '[';
}

// The switch that sets the same field the other way: --no-overlap for --overlap and back. nullptr for most.
const Option* opposite(const Option& option) {
    constexpr std::string_view kNo = "--no-";
    const std::string_view flag = option.flag;
    return find_option(flag.starts_with(kNo) ? fmt::format("--{}", flag.substr(kNo.size()))
                                             : fmt::format("--no-{}", flag.substr(2)));
}

// The switch whose off_flag() this is.
const Option* switch_turned_off_by(std::string_view flag) {
    const auto* it =
        std::find_if(std::begin(kOptions), std::end(kOptions), [&](const Option& o) { return flag == off_flag(o); });
    return it == std::end(kOptions) ? nullptr : it;
}

// Options of one source (the variables, or the command line), where no switch may be on and off.
class Source {
  public:
    explicit Source(Given* given) : given_(given) {}
    // `text` is the option as it was given, with its value.
    Status set(Config& config, const Option& option, std::string_view value, std::string text) {
        const std::string before = option.get(config);
        if (Status s = option.set(config, value); !s.ok()) return s;
        if (option.value_name != nullptr) {
            if (given_ != nullptr) given_->put(option, std::move(text));
            return {};
        }
        const Option* other = opposite(option);
        for (const auto& [earlier, said] : seen_) {
            if ((earlier == &option || earlier == other) && option.get(config) != before)
                return error(Code::invalid_argument, "it contradicts {}: leave one of them out", said);
        }
        seen_.emplace_back(&option, text);
        if (given_ != nullptr) given_->put(option, std::move(text));
        return {};
    }

  private:
    Given* given_;
    std::vector<std::pair<const Option*, std::string>> seen_;
};

}  // namespace

void Given::put(const Option& option, std::string text) {
    const Option* other = opposite(option);
    std::erase_if(texts_, [&](const auto& t) { return t.first == &option || t.first == other; });
    texts_.emplace_back(&option, std::move(text));
}

std::string Given::text(std::string_view flag, const Config& config) const {
    const Option* option = find_option(flag);
    if (option == nullptr) return std::string(flag);
    const Option* other = opposite(*option);
    for (const auto& [given, said] : texts_) {
        if (given == option || given == other) return said;
    }
    return option->value_name == nullptr ? option->flag : fmt::format("{} {}", option->flag, option->get(config));
}

bool Given::has(std::string_view flag) const {
    return std::any_of(texts_.begin(), texts_.end(), [&](const auto& t) { return flag == t.first->flag; });
}

void say_more(Config& config, const Given& given) {
    if (!given.has("--sluice-log")) config.verbosity = Verbosity::debug;
}

std::span<const Option> options() {
    return kOptions;
}

bool takes_free_text(std::string_view flag) {
    return std::find(kFreeText.begin(), kFreeText.end(), flag) != kFreeText.end();
}

bool works_in(Where where, Place place) {
    return where == Where::everywhere || (where == Where::run_only && place == Place::run) ||
           (where == Where::serve_only && place == Place::serve);
}

const Option* find_option(std::string_view flag) {
    const auto* it =
        std::find_if(std::begin(kOptions), std::end(kOptions), [&](const Option& o) { return flag == o.flag; });
    return it == std::end(kOptions) ? nullptr : it;
}

std::string off_flag(const Option& option) {
    const std::string_view flag = option.flag;
    if (option.value_name != nullptr || flag.starts_with("--no-") || opposite(option) != nullptr) return "";
    return fmt::format("--no-{}", flag.substr(2));
}

Status take_options(Config& config, std::vector<std::string>& arguments, Place place, TakenOptions* taken, Given* given,
                    bool bare_words) {
    std::vector<std::string> rest;
    Source line(given);
    for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i] == "--") {
            rest.insert(rest.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
            break;
        }
        if (takes_free_text(arguments[i]) && i + 1 < arguments.size()) {
            rest.push_back(arguments[i]);
            rest.push_back(arguments[++i]);
            continue;
        }
        const size_t equals = arguments[i].find('=');
        const std::string flag = arguments[i].substr(0, equals);
        const Option* option = find_option(flag);
        std::string value = "1";
        if (option == nullptr) {
            option = switch_turned_off_by(flag);
            value = "0";
        }
        if (option == nullptr) {
            rest.push_back(arguments[i]);
            continue;
        }
        if (!works_in(option->where, place)) return no_effect(flag, option->where);
        bool bare = option->value_name == nullptr;
        // No program of llama.cpp takes a word that belongs to no flag, so it was meant for this one.
        const bool word_follows =
            equals == std::string::npos && i + 1 < arguments.size() && !arguments[i + 1].starts_with('-');
        if (may_be_bare(*option) && equals == std::string::npos) {
            Config trial = config;
            bare = !word_follows;
            if (word_follows) {
                if (Status s = option->set(trial, arguments[i + 1]); !s.ok()) {
                    if (!bare_words) return s.within(flag);
                    bare = true;
                }
            }
        } else if (bare && word_follows && !bare_words) {
            return error(Code::invalid_argument, "{} takes no value, and \"{}\" belongs to no other option", flag,
                         arguments[i + 1]);
        }
        if (bare) {
            if (equals != std::string::npos) {
                return error(Code::invalid_argument, "{} takes no value", flag);
            }
        } else if (equals != std::string::npos) {
            value = arguments[i].substr(equals + 1);
        } else if (i + 1 < arguments.size()) {
            value = arguments[++i];
        } else {
            return error(Code::invalid_argument, "{} needs a value: {}", flag, option->value_name);
        }
        std::string text = bare ? flag : fmt::format("{} {}", flag, value);
        if (Status s = line.set(config, *option, value, std::move(text)); !s.ok()) return s.within(flag);
        if (taken == nullptr) continue;
        // As it stands now: what may be repeated adds up, and the variable of a switch's opposite must not contradict.
        taken->emplace_back(option->variable, option->get(config));
        if (const Option* other = opposite(*option)) taken->emplace_back(other->variable, other->get(config));
    }
    arguments = std::move(rest);
    return {};
}

Status read_environment(Config& config, const char* const* environment, Place place, Given* given) {
    Source variables(given);
    for (; environment != nullptr && *environment != nullptr; ++environment) {
        const std::string_view entry = *environment;
        if (!entry.starts_with("SLUICE_")) continue;
        const size_t equals = entry.find('=');
        const std::string name(entry.substr(0, equals));
        const std::string_view value = equals == std::string_view::npos ? "" : entry.substr(equals + 1);
        if (std::any_of(kOtherVariables.begin(), kOtherVariables.end(), [&](const char* v) { return name == v; }))
            continue;
        const auto* it =
            std::find_if(std::begin(kOptions), std::end(kOptions), [&](const Option& o) { return name == o.variable; });
        if (it == std::end(kOptions)) {
            return error(Code::invalid_argument, "there is no option {} (sluice run --help lists them all)", name);
        }
        if (!works_in(it->where, place)) {
            return error(Code::invalid_argument,
                         "the variable {0} is set, but has no effect here, only in {1}: unset it (env -u {0} ...), and "
                         "give {2} to {1}",
                         name, where_it_works(it->where), it->flag);
        }
        if (Status s = variables.set(config, *it, value, std::string(entry)); !s.ok()) return s.within(name);
    }
    return {};
}

namespace {

// What is done in decode for layers that are still to come.
template <typename Said>
Status validate_foresight(const Config& config, const Said& said) {
    if (config.prefetch > 64)
        return error(Code::invalid_argument, "prefetch is {}, but must be at most 64", config.prefetch);
    if (config.predict_spec_max > 64)
        return error(Code::invalid_argument, "predict_spec_max is {}, but must be at most 64", config.predict_spec_max);
    if (config.route_ahead > 64)
        return error(Code::invalid_argument, "route_ahead is {}, but must be at most 64", config.route_ahead);
    if (config.prefetch > 0 && config.predict_prefetch) {
        return error(Code::invalid_argument, "{} and {} both guess what the next layers choose: give one of them",
                     said("--prefetch"), said("--predict-prefetch"));
    }
    if (config.prefetch_auto && config.prefetch == 0 && !config.predict_prefetch)
        return error(Code::invalid_argument, "prefetch_auto has no effect without prefetch or predict_prefetch");
    if (!config.predict_prefetch && config.predict_spec_max != Config().predict_spec_max) {
        return error(Code::invalid_argument, "{} has no effect without --predict-prefetch", said("--predict-spec-max"));
    }
    if (config.route_ahead == 0) {
        const char* alone = config.route_ahead_weights != Config().route_ahead_weights ? "--route-ahead-weights"
                            : config.route_ahead_router != Config().route_ahead_router ? "--route-ahead-router"
                                                                                       : nullptr;
        if (alone == nullptr) return {};
        return error(Code::invalid_argument, "{} has no effect without --route-ahead", said(alone));
    }
    if (config.prefetch > 0 || config.predict_prefetch) {
        return error(Code::invalid_argument,
                     "with {} the choices are known before their layers and their experts read early, so {} would only "
                     "guess at the same: leave it out",
                     said("--route-ahead"), said(config.prefetch > 0 ? "--prefetch" : "--predict-prefetch"));
    }
    if (config.expert_substitute > 0) {
        return error(
            Code::invalid_argument,
            "with {} a layer's experts are read before it comes, so {} would replace what is on its way: leave "
            "one out",
            said("--route-ahead"), said("--expert-substitute"));
    }
    if (config.predict_log) {
        return error(
            Code::invalid_argument,
            "with {} layers choose what was predicted, so {} would grade a prediction by itself: leave one out",
            said("--route-ahead"), said("--predict-log"));
    }
    return {};
}

}  // namespace

Status validate(const Config& config, const Given& given) {
    const auto said = [&](std::string_view flag) { return given.text(flag, config); };
    if (config.io_threads < 1 || config.io_threads > 64) {
        return error(Code::invalid_argument, "io_threads is {}, but must be 1 to 64", config.io_threads);
    }
    if (config.cache_bytes && *config.cache_bytes == 0) {
        return error(Code::invalid_argument, "cache_bytes is 0, but at least one expert must fit");
    }
    if (config.cache_bytes && (config.cache_floor_bytes || config.cache_ceil_bytes)) {
        return error(Code::invalid_argument, "{} is the size of the cache, so {} has no effect: give one or the other",
                     said("--cache-mb"), said(config.cache_floor_bytes ? "--cache-floor-mb" : "--cache-ceil-mb"));
    }
    if (config.cache_floor_bytes && config.cache_ceil_bytes && *config.cache_floor_bytes > *config.cache_ceil_bytes) {
        return error(Code::invalid_argument, "{} is more than {}", said("--cache-floor-mb"), said("--cache-ceil-mb"));
    }
    if (config.ram_bytes) {
        const uint64_t experts = config.cache_bytes.value_or(config.cache_floor_bytes.value_or(0));
        const uint64_t margin = cache::process_margin(*config.ram_bytes);
        if (experts == 0 && margin >= *config.ram_bytes) {
            return error(Code::invalid_argument,
                         "{} is for the whole process, and {} of it always stay unused: give it more, or auto",
                         said("--ram"), human_bytes(margin));
        }
        if (experts + margin >= *config.ram_bytes) {
            return error(Code::invalid_argument,
                         "{} is for the whole process: less the {} of it that stay unused, it cannot hold the "
                         "{} of {} alone, and the rest of the model comes on top of that",
                         said("--ram"), human_bytes(margin), human_bytes(experts),
                         said(config.cache_bytes ? "--cache-mb" : "--cache-floor-mb"));
        }
    }
    if (config.profile != "off" && config.cache_policy == CachePolicy::lru) {
        return error(Code::invalid_argument, "{} has no effect with {}, which counts no uses", said("--profile"),
                     said("--cache-policy"));
    }
    if (!config.predict_model.empty() && !config.predict_log && !config.predict_prefetch) {
        return error(Code::invalid_argument, "{} has no effect without --predict-prefetch or --predict-log",
                     said("--predict-model"));
    }
    // Two outputs in one file would overwrite each other.
    std::vector<const std::string*> files;
    if (config.profile != "off" && config.profile != "auto") files.push_back(&config.profile);
    for (const std::string Config::*f : kOutputFiles) {
        const std::string& path = config.*f;
        if (path.empty()) continue;
        for (const std::string* other : files) {
            if (same_file(*other, path))
                return error(Code::invalid_argument, "two outputs are to be written to {}", path);
        }
        if (same_file(config.predict_model, path))
            return error(Code::invalid_argument, "{} is read, and an output is to be written to it", path);
        files.push_back(&path);
    }
    if (!config.overlap && config.wave != 0) {
        return error(Code::invalid_argument, "{} has no effect with {}", said("--wave"), said("--no-overlap"));
    }
    if (!config.overlap && config.prefill_mode == PrefillMode::macro) {
        return error(Code::invalid_argument, "{} has no effect with {}", said("--prefill-mode"), said("--no-overlap"));
    }
    if (Status s = validate_foresight(config, said); !s.ok()) return s;
    if (config.wave > 64) return error(Code::invalid_argument, "wave is {}, but must be at most 64", config.wave);
    if (!(config.drop_cold_experts >= 0 && config.drop_cold_experts <= 1024)) {
        return error(Code::invalid_argument, "drop_cold_experts is {}, but must be 0 to 1024",
                     config.drop_cold_experts);
    }
    if (!(config.expert_substitute >= 0 && config.expert_substitute <= 1)) {
        return error(Code::invalid_argument, "expert_substitute is {}, but must be 0 to 1", config.expert_substitute);
    }
    if (config.deterministic && !asks_memory(config)) {
        return error(Code::invalid_argument,
                     "{} has no effect without an option that asks what is in memory (--drop-cold-experts, "
                     "--expert-substitute)",
                     said("--deterministic"));
    }
    if (config.deterministic && !config.cache_bytes) {
        return error(Code::invalid_argument,
                     "{} needs --cache-mb: a cache whose size follows free memory is another one in every run",
                     said("--deterministic"));
    }
    if (config.token_trace.empty() && config.token_trace_at != Config().token_trace_at) {
        return error(Code::invalid_argument, "{} has no effect without --token-trace", said("--token-trace-at"));
    }
    if (config.route_features.empty() && config.route_features_bytes != Config().route_features_bytes) {
        return error(Code::invalid_argument, "{} has no effect without --route-features", said("--route-features-max"));
    }
    return {};
}

Status check_outputs(const Config& config, std::span<const std::string> arguments) {
    const auto taken = [&](auto is, std::string_view by) -> Status {
        for (const std::string Config::*f : kOutputFiles) {
            if (is(config.*f))
                return error(Code::invalid_argument,
                             "an output is to be written to {}, which {}: give it a file of its own", config.*f, by);
        }
        return {};
    };
    for (size_t i = 0; i < arguments.size(); ++i) {
        if (is_text(arguments[i])) {
            ++i;
        } else if (Status s = taken([&](const std::string& out) { return same_file(out, arguments[i]); },
                                    "another argument names");
                   !s.ok()) {
            return s;
        }
    }
    for (const auto& [fd, by] :
         {std::pair(STDIN_FILENO, "standard input comes from"), std::pair(STDOUT_FILENO, "standard output goes to")}) {
        if (Status s = taken([fd = fd](const std::string& out) { return is_open_as(out, fd); }, by); !s.ok()) return s;
    }
    return {};
}

Status check_place(const Config& config, Place place) {
    const Config defaults;
    for (const Option& o : kOptions) {
        if (!works_in(o.where, place) && o.get(config) != o.get(defaults)) return no_effect(o.flag, o.where);
    }
    return {};
}

std::vector<std::string> lossy_options(const Config& config) {
    const Config defaults;
    std::vector<std::string> out;
    for (const char* flag : kLossy) {
        const Option& o = *find_option(flag);
        // It is 8 bits by default, but the model's own that changes nothing more.
        const bool changes = std::string_view(flag) == "--route-ahead-router"
                                 ? config.route_ahead > 0 && config.route_ahead_router == RouteAheadRouter::small
                                 : o.get(config) != o.get(defaults);
        if (changes) out.push_back(fmt::format("{} {}", flag, o.get(config)));
    }
    return out;
}

Config without_lossy(const Config& config) {
    const Config defaults;
    Config out = config;
    for (const char* flag : kLossy) {
        const Option& o = *find_option(flag);
        (void)o.set(out, o.get(defaults));
    }
    out.deterministic = false;
    return out;
}

bool has_decode_dials(const Config& config) {
    return asks_memory(config) || config.route_ahead > 0;
}

std::vector<std::string> as_flags(const Config& config) {
    const Config defaults;
    std::vector<std::string> out;
    for (const Option& o : kOptions) {
        const std::string value = o.get(config);
        if (value == o.get(defaults)) continue;
        if (o.value_name != nullptr) {
            out.insert(out.end(), {o.flag, value});
        } else if (value == "1") {
            out.emplace_back(o.flag);
        } else if (std::string off = off_flag(o); !off.empty()) {
            out.push_back(std::move(off));  // where it is empty, the opposite is a row of its own, which stands at 1
        }
    }
    return out;
}

bool has_outputs(const Config& config) {
    return config.progress || config.live || config.metrics_port != 0 ||
           std::any_of(std::begin(kOutputFiles), std::end(kOutputFiles),
                       [&](const std::string Config::*f) { return !(config.*f).empty(); });
}

std::string options_help(size_t width, Place place) {
    std::string out;
    constexpr size_t kIndent = 8;
    for (const Option& o : kOptions) {
        if (!works_in(o.where, place)) continue;
        const std::string off = off_flag(o);
        out += fmt::format("  {}{}{}\n", o.flag,
                           o.value_name != nullptr ? " "
                           : off.empty()           ? ""
                                                   : ", ",
                           o.value_name != nullptr ? o.value_name : off);
        std::string text = fmt::format("{} Default: {}. Variable: {}.", o.help, o.default_text, o.variable);
        out += wrap_text(text, kIndent, width);
    }
    return out;
}

}  // namespace sluice::backend
