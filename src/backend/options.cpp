#include "backend/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/bytes.h"
#include "base/text.h"

namespace sluice::backend {
namespace {

Status bad_value(std::string_view text, const char* wanted) {
    return error(Code::invalid_argument, "\"{}\" is not {}", text, wanted);
}

Status set_cache(Config& config, std::string_view text) {
    if (text == "auto") {
        config.cache_bytes.reset();
        return {};
    }
    const auto bytes = parse_bytes(text, MiB);
    if (!bytes || *bytes == 0)
        return bad_value(text, "a size: auto, or MiB as in 500 or 0.5, or with a suffix as in 8G");
    config.cache_bytes = bytes;
    return {};
}

Status set_io_threads(Config& config, std::string_view text) {
    unsigned n = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (ec != std::errc() || end != text.data() + text.size() || n < 1 || n > 64) {
        return bad_value(text, "a number from 1 to 64");
    }
    config.io_threads = n;
    return {};
}

// Words for an enum, in one place for parsing and messages.
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

Status set_engine(Config& config, std::string_view text) {
    return set_word(config.io_engine, text,
                    std::array<Word<IoEngine>, 3>{
                        {{"auto", IoEngine::automatic}, {"io_uring", IoEngine::io_uring}, {"pread", IoEngine::pread}}});
}

Status set_no_odirect(Config& config, std::string_view text) {
    bool off = false;
    Status s =
        set_word(off, text, std::array<Word<bool>, 4>{{{"1", true}, {"0", false}, {"on", true}, {"off", false}}});
    config.direct_io = !off;
    return s;
}

Status set_dense(Config& config, std::string_view text) {
    return set_word(config.dense_weights, text,
                    std::array<Word<DenseWeights>, 3>{
                        {{"anon", DenseWeights::anon}, {"warm", DenseWeights::warm}, {"mmap", DenseWeights::mmap}}});
}

Status set_verbosity(Config& config, std::string_view text) {
    return set_word(config.verbosity, text,
                    std::array<Word<Verbosity>, 4>{{{"error", Verbosity::error},
                                                    {"warn", Verbosity::warn},
                                                    {"info", Verbosity::info},
                                                    {"debug", Verbosity::debug}}});
}

constexpr std::array<Option, 6> kOptions{{
    {"--cache-mb", "SLUICE_CACHE_MB", "N|auto", "auto",
     "Memory for experts, in MiB (decimals and the suffixes K, M and G are understood). At least one expert must fit; "
     "more means fewer reads. auto takes what is free when the first token runs, less a reserve, and at most what all "
     "experts need.",
     set_cache},
    {"--io-threads", "SLUICE_IO_THREADS", "N", "8",
     "Reads in flight at the drive, 1 to 64: depth of the io_uring ring, or threads of the pread pool.",
     set_io_threads},
    {"--io-engine", "SLUICE_IO_ENGINE", "auto|io_uring|pread", "auto",
     "How reads reach the kernel. auto prefers io_uring and falls back to a pool of threads where the kernel refuses "
     "it.",
     set_engine},
    {"--no-odirect", "SLUICE_NO_ODIRECT", nullptr, "off",
     "Read experts through the page cache instead of directly from the drive.", set_no_odirect},
    {"--dense-weights", "SLUICE_DENSE_WEIGHTS", "anon|warm|mmap", "anon",
     "Where the always-needed weights live. anon: read once into memory of our own, which memory pressure cannot drop. "
     "warm: page cache, read ahead at load. mmap: page cache, read when touched.",
     set_dense},
    {"--sluice-log", "SLUICE_LOG", "error|warn|info|debug", "info", "How much Sluice says on standard error.",
     set_verbosity},
}};

// Variables that belong to the set-up and the build, and are not options of a run.
constexpr std::array<const char*, 5> kOtherVariables{"SLUICE_CACHE_DIR", "SLUICE_LLAMA_CPP_SOURCE", "SLUICE_JOBS",
                                                     "SLUICE_LLAMA_CPP_BUILD", "SLUICE_SERVE_CHILD"};

// Options of the stock tools whose value may look like one of ours.
constexpr std::array<std::string_view, 10> kFreeText{"-p",     "--prompt", "-sys", "--system-prompt",  "-f",
                                                     "--file", "-m",       "-r",   "--reverse-prompt", "--model"};

}  // namespace

std::span<const Option> options() {
    return kOptions;
}

bool takes_free_text(std::string_view flag) {
    return std::find(kFreeText.begin(), kFreeText.end(), flag) != kFreeText.end();
}

const Option* find_option(std::string_view flag) {
    const auto it = std::find_if(kOptions.begin(), kOptions.end(), [&](const Option& o) { return flag == o.flag; });
    return it == kOptions.end() ? nullptr : &*it;
}

Status take_options(Config& config, std::vector<std::string>& arguments, TakenOptions* taken) {
    std::vector<std::string> rest;
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
        if (option == nullptr) {
            rest.push_back(arguments[i]);
            continue;
        }
        std::string value = "1";
        if (option->value_name == nullptr) {
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
        if (Status s = option->set(config, value); !s.ok()) return s.within(flag);
        if (taken != nullptr) taken->emplace_back(option->variable, value);
    }
    arguments = std::move(rest);
    return {};
}

Status read_environment(Config& config, const char* const* environment) {
    for (; environment != nullptr && *environment != nullptr; ++environment) {
        const std::string_view entry = *environment;
        if (!entry.starts_with("SLUICE_")) continue;
        const size_t equals = entry.find('=');
        const std::string name(entry.substr(0, equals));
        const std::string_view value = equals == std::string_view::npos ? "" : entry.substr(equals + 1);
        if (std::any_of(kOtherVariables.begin(), kOtherVariables.end(), [&](const char* v) { return name == v; }))
            continue;
        const auto it =
            std::find_if(kOptions.begin(), kOptions.end(), [&](const Option& o) { return name == o.variable; });
        if (it == kOptions.end()) {
            return error(Code::invalid_argument, "there is no option {} (sluice run --help lists them all)", name);
        }
        if (Status s = it->set(config, value); !s.ok()) return s.within(name);
    }
    return {};
}

Status validate(const Config& config) {
    if (config.io_threads < 1 || config.io_threads > 64) {
        return error(Code::invalid_argument, "io_threads is {}, but must be 1 to 64", config.io_threads);
    }
    if (config.cache_bytes && *config.cache_bytes == 0) {
        return error(Code::invalid_argument, "cache_bytes is 0, but at least one expert must fit");
    }
    return {};
}

std::string options_help(size_t width) {
    std::string out;
    constexpr size_t kIndent = 8;
    for (const Option& o : kOptions) {
        out += fmt::format("  {}{}{}\n", o.flag, o.value_name != nullptr ? " " : "",
                           o.value_name != nullptr ? o.value_name : "");
        std::string text = fmt::format("{} Default: {}. Variable: {}.", o.help, o.default_text, o.variable);
        out += wrap_text(text, kIndent, width);
    }
    return out;
}

}  // namespace sluice::backend
