// Sluice: Mixture-of-Experts models bigger than memory, streamed from disk, inside unmodified llama.cpp.
//
// The public interface of libsluice. A program that already uses llama.h calls sluice::start() once, before it loads a
// model, and changes nothing else: the experts of every MoE model that llama.cpp then loads live in Sluice's cache.
// Load models with the default load mode (mmap), on the CPU.
//
// Errors are values; nothing here throws. All functions are thread-safe unless said otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default")))
#else
#define SLUICE_API
#endif

namespace sluice {

enum class DenseWeights {
    anon,  // read once with direct I/O into memory of our own: memory pressure cannot drop them
    warm,  // left in the page cache, read ahead at load
    mmap,  // left in the page cache, read as they are touched
};

enum class IoEngine { automatic, io_uring, pread, mmap };

// Which reads of experts are compared with the model's checksums, if it has any (`sluice verify --write`).
enum class VerifyReads {
    always,
    once,  // the first of each matrix, and what had to be read again after a failure
    never,
};

// How a prompt's experts are read.
enum class PrefillMode {
    automatic,  // for each layer and batch what is expected to be faster
    macro,      // all of the next layer while this one computes
    micro,      // what the layer's router chose
};

// Whose slot is given away when one is needed.
enum class CachePolicy {
    reuse,      // of the expert whose next use is farthest, judged by how often and how lately it was used
    frequency,  // of the one used least, where older uses count less
    lru,        // of the one used longest ago
};

// With --route-ahead, what early rankings are made by.
enum class RouteAheadRouter {
    small,  // large routers' copies in 8 bits
    full,   // the model's own
};
// With --route-ahead, the weights of the experts that are taken.
enum class RouteAheadWeights {
    router,     // those that the layer's router gives them, over each other
    predicted,  // those of the early ranking
};

enum class Verbosity { error, warn, info, debug };

// Every field is also a command line flag and an environment variable; options.md lists all three.
struct Config {
    std::optional<uint64_t>
        cache_bytes;  // memory for experts; unset: chosen from what is free when the first token runs
    // Memory for the whole process: weights, context, buffers and experts. Unset: experts take what is free, less a
    // reserve. What is too little fails the load, or the first token. All of these hold for all models together.
    std::optional<uint64_t> ram_bytes;
    std::optional<uint64_t> cache_floor_bytes;  // without cache_bytes: experts keep this, however short memory is
    std::optional<uint64_t> cache_ceil_bytes;   // and never take more
    CachePolicy cache_policy = CachePolicy::reuse;
    // How often experts were used in past runs: "auto" in a file for each model in the user's cache directory, a file's
    // name, or "off". Read when a model runs first, written when it is freed. Results are the same with any.
    std::string profile = "off";
    unsigned io_threads = 8;  // reads in flight at each drive, 1..64
    IoEngine io_engine = IoEngine::automatic;
    bool direct_io = true;
    // Copies of the model, or of its pack, on other drives: they take their part of the reads.
    std::vector<std::string> mirrors;
    std::string store = "auto";  // where experts are read from: "auto", "gguf", "pack", or the manifest of a pack
    VerifyReads verify_reads = VerifyReads::once;  // loading fails if it is another, but the model has no checksums
    bool overlap = true;                           // compute with the experts that are there while others are read
    unsigned wave = 0;                             // then, experts per launch at least; 0: as they come
    PrefillMode prefill_mode = PrefillMode::automatic;
    // In decode, this many layers ahead of the one that computes: what the last token chose there keeps its slot, or is
    // read while the drive has nothing else to do. 0: none. Results are the same bit for bit.
    unsigned prefetch = 0;
    // The same for the next layer, where what its router says of the hidden state of the layer at hand is expected; of
    // what is not there, at most so many experts are read.
    bool predict_prefetch = false;
    unsigned predict_spec_max = 2;
    // Whichever of the two is on is acted on only while that was measured to make tokens wait less.
    bool prefetch_auto = false;
    // Changes results: each layer takes the experts that its router ranked first this many layers earlier. 0: none.
    unsigned route_ahead = 0;
    RouteAheadRouter route_ahead_router = RouteAheadRouter::small;
    RouteAheadWeights route_ahead_weights = RouteAheadWeights::router;
    DenseWeights dense_weights = DenseWeights::anon;
    // Of sluice predict train, for the model at hand: the router's guess of the next layer is made on a state that is
    // corrected so. For predict_prefetch, and scored beside the others by predict_log. Another model's fails the load.
    std::string predict_model;
    bool predict_log = false;  // guess what routers choose, and say in the end how often that was right

    // What changes which experts run, and so what the model answers (docs/lossy.md). All off by default.
    double drop_cold_experts = 0;  // in decode, leave out what is not there and weighs less than this of an equal part
    // In decode, an expert in memory instead of one that is not, if the router gives it at most this share less weight.
    double expert_substitute = 0;
    // The host tells llama.cpp how many experts a token uses; only the program `sluice` can do that for it.
    unsigned n_expert_used = 0;  // 0: as the model says
    bool deterministic = false;  // what counts as there follows from what was computed before, not from the cache

    Verbosity verbosity = Verbosity::info;

    // Outputs of the run record (docs/record.md); empty: none. A file that cannot be opened fails start().
    std::string record;                                  // JSON lines
    std::string csv;                                     // one line per token
    std::string route_trace;                             // every choice of the routers
    std::string route_features;                          // what routers are given and choose, in passes over one token
    uint64_t route_features_bytes = uint64_t{1} << 30U;  // of that file, at most
    std::string io_trace;                                // every read
    std::string compute_trace;                           // every node of the graph; slows the run down
    std::string compute_trace_layers;                    // every layer
    std::string token_trace;                             // one token's reads, computes and waits, for Perfetto
    uint64_t token_trace_at = 8;                         // which one, counted from 0 in decode
    // Of the program only; start() refuses them elsewhere.
    bool progress = false;
    bool live = false;
    bool history = true;        // sluice run leaves a line about itself for sluice plan
    uint16_t metrics_port = 0;  // 0: no endpoint
};

// Where one phase of all runs so far spent its bytes. Of graphs over one token (decode) or more (prefill).
struct PhaseStats {
    uint64_t tokens = 0;
    uint64_t lookups = 0;  // distinct experts, per layer and graph
    uint64_t hits = 0;
    uint64_t bytes_read = 0;      // expert bytes that were missing
    uint64_t bytes_physical = 0;  // bytes asked of the drive for them
    double read_wait_ms = 0;      // compute stood still
    double repack_ms = 0;
    // Choices of routers that lossy options could have changed; of those, left out, and computed with another expert.
    uint64_t routed = 0, dropped = 0, substituted = 0;
    // Of route-ahead: layers' choices that were taken from an early ranking, and those left to their routers: all, in
    // the first layers, and in the first token after a prompt. Of the former, experts, and those that the router chose,
    // too.
    uint64_t ahead_committed = 0, ahead_passed = 0, ahead_passed_below = 0, ahead_passed_first = 0;
    uint64_t ahead_slots = 0, ahead_agreed = 0;
};

struct Stats {
    PhaseStats prefill, decode;
    uint64_t cache_bytes = 0;  // slots in use or not; 0 before the first token
    uint64_t slots = 0, experts = 0, experts_resident = 0;
    uint64_t evictions = 0, rereads = 0;
    uint64_t dense_bytes = 0;  // read into our own memory at load
};

// Registers Sluice with ggml. Calling it again replaces the configuration for models loaded from then on; a file that
// is still loaded is shared and keeps the cache it has. On failure returns false and says why: another llama.cpp
// version than this library was built for, or a value out of range.
[[nodiscard]] SLUICE_API bool start(const Config& config, std::string* error);

// Reads the SLUICE_... environment into `config`. False, with the reason, for a value that does not parse or a
// variable that does not exist.
[[nodiscard]] SLUICE_API bool config_from_environment(Config* config, std::string* error);

// Memory for experts, of all models together: at most so many bytes from now on, until the next call. What is held
// beyond that is given back to the system at once, or where a layer is being computed, when that is over. A higher
// limit, or none, allows growth as far as the configuration does. May be called from any thread, but not from a signal
// handler.
SLUICE_API void set_cache_limit(std::optional<uint64_t> bytes);

// Counts are summed over all models, also those freed since; cache and experts are of the models loaded now, or of the
// last one if none is.
SLUICE_API Stats stats();
// Starts all counts of stats() anew.
SLUICE_API void reset_stats();
// Why the last llama_decode failed, if it failed inside Sluice; empty otherwise.
SLUICE_API std::string last_error();

// "0.1.0".
SLUICE_API const char* version();
// The llama.cpp and ggml that this library works with: "llama.cpp v0.5.0 (ggml 0.25.1)".
SLUICE_API const char* llama_version_needed();

}  // namespace sluice
