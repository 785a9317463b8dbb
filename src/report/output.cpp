#include "report/output.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "base/write_all.h"

namespace sluice::report {
namespace {

constexpr int kWidth = 1400;
constexpr int kGuessedHeight = 900;
constexpr int kMostHeight = 16'000;  // what Chromium draws in one piece

Status cannot_write(const std::string& path, int why) {
    return error(Code::io_error, "cannot write {}: {}", path, std::strerror(why));
}

Status write_to(const std::string& path, std::string_view text) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return cannot_write(path, errno);
    const int why = write_all(fd, text);
    const int closed = ::close(fd) == 0 ? 0 : errno;
    return why != 0 || closed != 0 ? cannot_write(path, why != 0 ? why : closed) : Status();
}

// A directory of our own that goes with everything in it.
class Scratch {
  public:
    Scratch() {
        const char* root = std::getenv("TMPDIR");
        path_ = (root != nullptr && *root != '\0' ? std::string(root) : "/tmp") + "/sluice-report-XXXXXX";
        if (::mkdtemp(path_.data()) == nullptr) path_.clear();
    }
    ~Scratch() {
        std::error_code ignored;
        if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    [[nodiscard]] bool ok() const { return !path_.empty(); }
    [[nodiscard]] std::string file(const char* name) const { return path_ + "/" + name; }

  private:
    std::string path_;
};

std::string text_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

// The last line that says something, for an error of ours.
std::string last_line(const std::string& text) {
    size_t end = text.find_last_not_of(" \n\r");
    if (end == std::string::npos) return "it said nothing";
    const size_t begin = text.rfind('\n', end);
    return text.substr(begin == std::string::npos ? 0 : begin + 1,
                       end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

// Runs it to its end, with standard output and error in files.
Status run_program(const std::vector<std::string>& arguments, const std::string& out, const std::string& err,
                   std::chrono::seconds patience) {
    std::vector<std::string> owned = arguments;
    std::vector<char*> argv;
    for (std::string& a : owned) argv.push_back(a.data());
    argv.push_back(nullptr);

    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    // A group of its own: the browser has children, which have to end with it.
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    pid_t child = 0;
    const int failed = posix_spawn(&child, argv[0], &files, &attributes, argv.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (failed != 0) return error(Code::io_error, "cannot start {}: {}", arguments[0], std::strerror(failed));

    const auto until = std::chrono::steady_clock::now() + patience;
    int status = 0;
    while (true) {
        const pid_t ended = ::waitpid(child, &status, WNOHANG);
        if (ended == child) break;
        if (ended < 0 && errno != EINTR) return error(Code::io_error, "{}: {}", arguments[0], std::strerror(errno));
        if (std::chrono::steady_clock::now() > until) {
            ::kill(-child, SIGKILL);
            ::waitpid(child, &status, 0);
            return error(Code::io_error, "{} did not finish in {} s", arguments[0], patience.count());
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ::kill(-child, SIGKILL);  // what it left behind
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return error(Code::io_error, "{} failed: {}", arguments[0], last_line(text_of(err)));
    return {};
}

// "data-height" is written into the page when all is drawn (page.js).
std::optional<int> height_in(const std::string& dom) {
    constexpr std::string_view kName = "data-height=\"";
    const size_t at = dom.find(kName);
    if (at == std::string::npos) return std::nullopt;
    int height = 0;
    const auto [end, failed] = std::from_chars(dom.data() + at + kName.size(), dom.data() + dom.size(), height);
    return failed == std::errc() && height > 0 ? std::optional(height) : std::nullopt;
}

bool runs(const std::string& path) {
    std::error_code ignored;
    return ::access(path.c_str(), X_OK) == 0 && !std::filesystem::is_directory(path, ignored);
}

// As a shell would find it.
std::string on_path(const std::string& name) {
    if (name.find('/') != std::string::npos) return runs(name) ? name : "";
    const char* all = std::getenv("PATH");
    std::string_view rest = all != nullptr ? all : "/usr/bin:/bin";
    while (true) {
        const size_t colon = rest.find(':');
        const std::string folder(rest.substr(0, colon));
        const std::string path = (folder.empty() ? "." : folder) + "/" + name;
        if (runs(path)) return path;
        if (colon == std::string_view::npos) return "";
        rest.remove_prefix(colon + 1);
    }
}

}  // namespace

Status write_whole(const std::string& path, std::string_view text) {
    if (path == "-") {
        const int why = write_all(STDOUT_FILENO, text);
        return why != 0 ? cannot_write("standard output", why) : Status();
    }
    std::error_code ignored;
    const auto kind = std::filesystem::status(path, ignored).type();
    if (kind == std::filesystem::file_type::directory) return cannot_write(path, EISDIR);
    const bool there = kind != std::filesystem::file_type::not_found && kind != std::filesystem::file_type::none;
    if (there && kind != std::filesystem::file_type::regular) return write_to(path, text);

    // Where a link leads; the link itself stays.
    std::string target = path;
    if (there) {
        const auto real = std::filesystem::canonical(path, ignored);
        if (!ignored) target = real.string();
        if (::access(target.c_str(), W_OK) != 0) return cannot_write(path, errno);
    }
    std::string temporary = target + ".XXXXXX";
    const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
    if (fd < 0) return cannot_write(path, errno);
    const mode_t mask = ::umask(0);
    ::umask(mask);
    int why = write_all(fd, text);
    if (why == 0 && ::fchmod(fd, 0666 & ~mask) != 0) why = errno;
    if (::close(fd) != 0 && why == 0) why = errno;
    if (why == 0 && ::rename(temporary.c_str(), target.c_str()) != 0) why = errno;
    if (why == 0) return {};
    ::unlink(temporary.c_str());
    return cannot_write(path, why);
}

Result<std::string> find_browser() {
    const char* chosen = std::getenv("CHROME");
    if (chosen != nullptr && *chosen != '\0') {
        std::string path = on_path(chosen);
        if (path.empty()) return error(Code::not_found, "CHROME is {}, which is no program", chosen);
        return path;
    }
    for (const char* name : {"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}) {
        std::string path = on_path(name);
        if (!path.empty()) return path;
    }
    return error(
        Code::not_found,
        "a picture needs Chromium or Chrome, and neither is here: install one (Debian: apt-get install chromium) or "
        "set CHROME to it");
}

Status draw_png(const std::string& browser, std::string_view html, const std::string& path,
                std::chrono::seconds patience) {
    const Scratch scratch;
    if (!scratch.ok()) return error(Code::io_error, "cannot make a temporary directory: {}", std::strerror(errno));
    const std::string page = scratch.file("page.html");
    const std::string out = scratch.file("out");
    const std::string err = scratch.file("err");
    const std::string picture = scratch.file("page.png");
    if (Status s = write_whole(page, html); !s.ok()) return s;

    const auto arguments = [&](int height, const std::string& what) {
        std::vector<std::string> a{browser,
                                   "--headless",
                                   "--disable-gpu",
                                   "--disable-dev-shm-usage",
                                   "--no-first-run",
                                   "--hide-scrollbars",
                                   "--host-resolver-rules=MAP * ~NOTFOUND",
                                   "--user-data-dir=" + scratch.file("profile"),
                                   fmt::format("--window-size={},{}", kWidth, height),
                                   what,
                                   "file://" + page};
        // Its sandbox does not work for root.
        if (::geteuid() == 0) a.insert(a.begin() + 1, "--no-sandbox");
        return a;
    };
    if (Status s = run_program(arguments(kGuessedHeight, "--dump-dom"), out, err, patience); !s.ok()) return s;
    const auto height = height_in(text_of(out));
    if (!height) return error(Code::internal, "{} did not draw the page: {}", browser, last_line(text_of(err)));
    if (Status s =
            run_program(arguments(std::min(*height, kMostHeight), "--screenshot=" + picture), out, err, patience);
        !s.ok())
        return s;
    const std::string bytes = text_of(picture);
    if (!bytes.starts_with("\x89PNG"))
        return error(Code::internal, "{} made no picture: {}", browser, last_line(text_of(err)));
    return write_whole(path, bytes);
}

}  // namespace sluice::report
