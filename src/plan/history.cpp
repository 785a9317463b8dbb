#include "plan/history.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/write_all.h"
#include "machine/text.h"
#include "machine/user_directory.h"

namespace sluice::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr unsigned kVersion = 1;
// Beyond any machine and any patience; what is above is a damaged line.
constexpr uint64_t kMostCount = uint64_t{1} << 53U;
constexpr double kMostSpeed = 1e9;
constexpr unsigned kMostThreads = 4096;
constexpr size_t kMostWord = 256;
constexpr size_t kMostTypes = 64;
constexpr int kTries = 10;
constexpr std::chrono::milliseconds kBetweenTries{10};

bool is_word(const std::string& s) {
    return s.size() <= kMostWord && std::all_of(s.begin(), s.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

bool is_speed(double x) {
    return std::isfinite(x) && x > 0 && x <= kMostSpeed;
}

bool can_be(const PastRun& r) {
    const bool words = is_word(r.at) && is_word(r.model) && !r.model.empty() && is_word(r.machine) &&
                       is_word(r.drive) && is_word(r.policy);
    const bool counts = r.threads >= 1 && r.threads <= kMostThreads && r.tokens >= 1 && r.tokens <= kMostCount &&
                        r.cache_bytes <= kMostCount && r.slots <= kMostCount && r.lookups <= kMostCount &&
                        r.hits <= r.lookups && r.read_bytes <= kMostCount;
    const bool times = r.wall > 0 && static_cast<uint64_t>(r.wall) <= kMostCount && r.waited >= 0 &&
                       r.waited <= r.wall && r.reading >= 0 && r.reading <= r.wall;
    const bool predicted = !r.predicted || (r.predicted->low >= 0 && std::isfinite(r.predicted->low) &&
                                            is_speed(r.predicted->high) && r.predicted->low <= r.predicted->high);
    return words && counts && times && predicted;
}

bool can_be(const Speeds& s) {
    for (const auto* types : {&s.experts, &s.dense}) {
        if (types->size() > kMostTypes) return false;
        for (const auto& [type, ns] : *types) {
            if (!is_word(type) || !is_speed(ns)) return false;
        }
    }
    return is_word(s.at) && is_word(s.machine) && s.threads >= 1 && s.threads <= kMostThreads && is_speed(s.node);
}

Json heading(const char* kind) {
    return {{"v", kVersion}, {"kind", kind}};
}

Result<std::string> dumped(const Json& j) {
    std::string line = j.dump();
    if (line.size() >= kMostLine) return error(Code::invalid_argument, "a line this long is not remembered");
    return line;
}

// Takes single values out of a line; `ok` is false once one was missing or of another kind.
struct Fields {
    const Json& j;
    bool ok = true;

    const Json* find(const char* name) {
        const auto it = j.find(name);
        if (it == j.end()) ok = false;
        return it == j.end() ? nullptr : &*it;
    }
    void word(const char* name, std::string& to) {
        const Json* v = find(name);
        if (v == nullptr || !v->is_string()) return void(ok = false);
        to = v->get<std::string>();
    }
    template <typename N>
    void count(const char* name, N& to) {
        const Json* v = find(name);
        if (v == nullptr || !v->is_number_unsigned() || v->get<uint64_t>() > kMostCount) return void(ok = false);
        to = static_cast<N>(v->get<uint64_t>());
    }
    void number(const Json& v, double& to) {
        if (!v.is_number()) return void(ok = false);
        to = v.get<double>();
    }
    void types(const char* name, std::map<std::string, double>& to) {
        const Json* v = find(name);
        if (v == nullptr || !v->is_object() || v->size() > kMostTypes) return void(ok = false);
        for (const auto& [type, ns] : v->items()) number(ns, to[type]);
    }
};

std::optional<PastRun> run_in(const Json& j) {
    PastRun r;
    Fields f{j};
    uint64_t threads = 0;
    f.word("at", r.at);
    f.word("model", r.model);
    f.word("machine", r.machine);
    f.word("drive", r.drive);
    f.count("threads", threads);
    f.count("cache_bytes", r.cache_bytes);
    f.count("slots", r.slots);
    f.word("policy", r.policy);
    f.count("tokens", r.tokens);
    f.count("wall_ns", r.wall);
    f.count("waited_ns", r.waited);
    f.count("reading_ns", r.reading);
    f.count("lookups", r.lookups);
    f.count("hits", r.hits);
    f.count("read_bytes", r.read_bytes);
    const Json* p = f.find("predicted");
    if (p != nullptr && !p->is_null()) {
        r.predicted.emplace();
        if (!p->is_array() || p->size() != 2) return std::nullopt;
        f.number((*p)[0], r.predicted->low);
        f.number((*p)[1], r.predicted->high);
    }
    if (threads > kMostThreads) return std::nullopt;
    r.threads = static_cast<unsigned>(threads);
    return f.ok && can_be(r) ? std::optional(r) : std::nullopt;
}

std::optional<Speeds> speeds_in(const Json& j) {
    Speeds s;
    Fields f{j};
    uint64_t threads = 0;
    f.word("at", s.at);
    f.word("machine", s.machine);
    f.count("threads", threads);
    f.types("experts", s.experts);
    f.types("dense", s.dense);
    if (const Json* node = f.find("node")) f.number(*node, s.node);
    if (const auto busy = j.find("busy"); busy != j.end()) s.busy = *busy == true;
    if (threads > kMostThreads) return std::nullopt;
    s.threads = static_cast<unsigned>(threads);
    return f.ok && can_be(s) ? std::optional(s) : std::nullopt;
}

// Holds the file, and its lock as long as it lives.
struct Locked {
    int fd = -1;
    Locked() = default;
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    ~Locked() {
        if (fd >= 0) ::close(fd);
    }

    Status take(const std::string& path) {
        for (int i = 0; i < kTries; ++i) {
            if (i > 0) std::this_thread::sleep_for(kBetweenTries);
            if (fd >= 0) ::close(fd);
            // O_NONBLOCK: a pipe under this name must not wait for its reader.
            fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
            if (fd < 0) return error(Code::io_error, "cannot open {}: {}", path, std::strerror(errno));
            struct stat held = {};
            struct stat named = {};
            if (fstat(fd, &held) != 0 || !S_ISREG(held.st_mode))
                return error(Code::invalid_argument, "{} is no plain file", path);
            if (flock(fd, LOCK_EX | LOCK_NB) != 0) continue;
            // Whoever cut it down has put another file in its place.
            if (stat(path.c_str(), &named) == 0 && named.st_ino == held.st_ino && named.st_dev == held.st_dev)
                return {};
        }
        return error(Code::io_error, "{} is in use", path);
    }
};

// The newest lines of `text`, at most `bytes` of them.
std::string_view newest(std::string_view text, uint64_t bytes) {
    if (text.size() <= bytes) return text;
    const size_t end = text.find('\n', text.size() - bytes);
    return end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
}

Status write_fully(int fd, const std::string& path, std::string_view text) {
    const int rc = write_all(fd, text);
    return rc == 0 ? Status() : error(Code::io_error, "cannot write to {}: {}", path, std::strerror(rc));
}

Status replace_with(const std::string& path, std::string_view text) {
    const std::string fresh = path + ".tmp";
    // Only one can be here, by the lock. What is there is left from one who was killed.
    ::unlink(fresh.c_str());
    const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return error(Code::io_error, "cannot create {}: {}", fresh, std::strerror(errno));
    Status s = write_fully(fd, fresh, text);
    ::close(fd);
    if (s.ok() && ::rename(fresh.c_str(), path.c_str()) != 0)
        s = error(Code::io_error, "cannot replace {}: {}", path, std::strerror(errno));
    if (!s.ok()) ::unlink(fresh.c_str());
    return s;
}

}  // namespace

Result<std::string> history_path() {
    const auto directory = machine::user_directory();
    if (!directory.ok()) return directory.status();
    return *directory + "/runs.jsonl";
}

Result<std::string> line_of(const PastRun& r) {
    if (!can_be(r)) return error(Code::invalid_argument, "a run that cannot be is not remembered");
    Json j = heading("run");
    j.update(Json{{"at", r.at},
                  {"model", r.model},
                  {"machine", r.machine},
                  {"drive", r.drive},
                  {"threads", r.threads},
                  {"cache_bytes", r.cache_bytes},
                  {"slots", r.slots},
                  {"policy", r.policy},
                  {"tokens", r.tokens},
                  {"wall_ns", static_cast<uint64_t>(r.wall)},
                  {"waited_ns", static_cast<uint64_t>(r.waited)},
                  {"reading_ns", static_cast<uint64_t>(r.reading)},
                  {"lookups", r.lookups},
                  {"hits", r.hits},
                  {"read_bytes", r.read_bytes}});
    j["predicted"] = r.predicted ? Json::array({r.predicted->low, r.predicted->high}) : Json();
    return dumped(j);
}

Result<std::string> line_of(const Speeds& s) {
    if (!can_be(s)) return error(Code::invalid_argument, "speeds that cannot be are not remembered");
    Json j = heading("speed");
    j.update(Json{{"at", s.at}, {"machine", s.machine}, {"threads", s.threads}});
    j["experts"] = Json::object();
    j["dense"] = Json::object();
    for (const auto& [type, ns] : s.experts) j["experts"][type] = ns;
    for (const auto& [type, ns] : s.dense) j["dense"][type] = ns;
    j["node"] = s.node;
    if (s.busy) j["busy"] = true;
    return dumped(j);
}

History parse_history(std::string_view text) {
    History out;
    while (!text.empty()) {
        const size_t end = text.find('\n');
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        if (line.empty() || line.size() >= kMostLine) continue;
        const Json j = Json::parse(line, nullptr, false);
        if (!j.is_object()) continue;
        const auto version = j.find("v");
        const auto kind = j.find("kind");
        if (version == j.end() || *version != kVersion || kind == j.end() || !kind->is_string()) continue;
        if (*kind == "run") {
            if (auto run = run_in(j)) out.runs.push_back(std::move(*run));
        } else if (*kind == "speed") {
            if (auto speeds = speeds_in(j)) out.speeds.push_back(std::move(*speeds));
        }
    }
    return out;
}

History read_history(const std::string& path) {
    const auto text = machine::read_text(path);
    return text ? parse_history(*text) : History();
}

Status append_line(const std::string& path, const std::string& line, uint64_t most_bytes) {
    if (line.empty() || line.size() >= kMostLine || line.find('\n') != std::string::npos)
        return error(Code::invalid_argument, "this is no line");
    std::error_code ec;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ec);
    Locked file;
    if (Status s = file.take(path); !s.ok()) return s;
    struct stat st = {};
    if (fstat(file.fd, &st) != 0) return error(Code::io_error, "cannot look at {}: {}", path, std::strerror(errno));
    const auto size = static_cast<uint64_t>(st.st_size);
    if (size + line.size() + 1 > most_bytes) {
        const std::string text = machine::read_text(path).value_or("");
        std::string kept(newest(text, most_bytes / 2));
        if (!kept.empty() && kept.back() != '\n') kept += '\n';
        return replace_with(path, kept + line + '\n');
    }
    // A line that a full disk cut off must not spoil this one.
    char last = '\n';
    if (size > 0 && ::pread(file.fd, &last, 1, st.st_size - 1) != 1) last = '\n';
    return write_fully(file.fd, path, (last == '\n' ? "" : "\n") + line + '\n');
}

}  // namespace sluice::plan
