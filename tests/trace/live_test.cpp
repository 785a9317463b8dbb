#include "trace/live.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/trace/support.h"
#include "trace/utf8.h"

namespace sluice::trace {
namespace {

std::string without_colours(const std::string& line) {
    std::string out;
    for (size_t i = 0; i < line.size(); ++i) {
        if (line[i] == '\033') {
            while (i < line.size() && line[i] != 'm') ++i;
        } else {
            out += line[i];
        }
    }
    return out;
}

Row token(Random& random, size_t layers) {
    Row row;
    row.phase = 1;
    row.tokens = 1;
    row.output_tokens = 1;
    Nanos wall = 0;
    for (const Part p : {Part::overhead, Part::dense, Part::routed, Part::wait_read, Part::convert, Part::manage,
                         Part::sample, Part::output}) {
        const auto time = static_cast<Nanos>(random.below(8'000'000U >> static_cast<unsigned>(p) / 4U));
        row.parts[static_cast<size_t>(p)] = time;
        wall += time;
    }
    row.wall = wall;
    row.lookups = static_cast<int64_t>(layers) * 8;
    row.hits = static_cast<int64_t>(layers) * 5;
    row.exact_bytes = 30 << 20;
    row.exact_physical = 31 << 20;
    row.read_busy = wall / 2;
    row.queue_depth_max = 16;
    row.cache_resident = 700;
    row.rss = int64_t{3} << 30;
    row.mem_available = int64_t{7} << 30;
    row.swap = 0;
    row.major_faults = 1;
    row.layers.resize(layers);
    for (size_t l = 0; l < layers; ++l) row.layers[l] = {1, 1, 8, static_cast<int64_t>(l * 9 / layers), 1};
    return row;
}

// A run of a model with many layers, with text.
LiveState busy_state(size_t layers = 48, int tokens = 60) {
    Random random(21);
    LiveState state;
    Book book;
    book.models.push_back({{"name", "Some-Model-30B-A3B-Q4_K_M.gguf"}});
    EXPECT_TRUE(state.model(book, 0).ok());
    EXPECT_TRUE(state.cache(book, {{"bytes", 2147483648U}, {"slots", 768}, {"records", 6144}}).ok());
    Row prompt;
    prompt.phase = 0;
    prompt.tokens = 512;
    prompt.wall = 9'000'000'000;
    book.of(Phase::prefill).add(prompt);
    EXPECT_TRUE(state.row(book, prompt, "").ok());
    for (int i = 0; i < tokens; ++i) {
        const Row row = token(random, layers);
        book.of(Phase::decode).add(row);
        book.of(Phase::decode).reads.add(static_cast<Nanos>(80000 + random.below(900000)));
        const char* const words[] = {"In the ", "beginning ", "was the \xE4\xB8\x96\xE7\x95\x8C, ", "and\n", "so "};
        EXPECT_TRUE(state.row(book, row, words[i % 5]).ok());
    }
    return state;
}

std::string shown(const LiveState& state, int width, int height, bool colour, bool unicode) {
    std::string out =
        fmt::format("== {} x {}{}{}\n", width, height, colour ? ", colour" : "", unicode ? "" : ", ascii");
    for (const std::string& line : render_live(state, width, height, colour, unicode)) {
        for (const char c : line) out += c == '\033' ? std::string("\\e") : std::string(1, c);
        out += "\n";
    }
    return out;
}

TEST(LiveRender, Golden) {
    LiveState golden;
    ASSERT_TRUE(replay(golden_record(), golden).ok());
    golden.add_text("And the king said\nunto them");
    const LiveState busy = busy_state();
    std::string out;
    for (const auto& [width, height] : {std::pair{20, 4}, {20, 12}, {40, 8}, {40, 24}, {80, 6}, {80, 24}, {200, 40}})
        out += shown(busy, width, height, false, true);
    out += shown(busy, 80, 12, false, false);
    out += shown(busy, 80, 12, true, true);
    out += shown(golden, 80, 16, false, true);
    out += shown(LiveState(), 80, 12, false, true);
    expect_golden("golden.live", out);
}

TEST(LiveRender, NeverWiderNorHigher) {
    const LiveState none;
    LiveState prompt_only;
    Book book;
    Row row;
    row.phase = 0;
    book.of(Phase::prefill).add(row);
    ASSERT_TRUE(prompt_only.row(book, row, "").ok());
    const LiveState busy = busy_state(), wide = busy_state(500, 700);
    for (const LiveState* state : std::initializer_list<const LiveState*>{&none, &prompt_only, &busy, &wide}) {
        for (const int width : {-1, 0, 1, 2, 3, 7, 8, 9, 10, 19, 20, 33, 40, 79, 80, 120, 200, 1000}) {
            for (int height = -1; height <= 40; ++height) {
                for (const bool colour : {false, true}) {
                    const auto lines = render_live(*state, width, height, colour, width % 2 == 0);
                    ASSERT_LE(static_cast<int>(lines.size()), std::max(0, height));
                    for (const std::string& line : lines) {
                        const std::string plain = without_colours(line);
                        ASSERT_LE(columns_of(plain), width) << plain;
                        ASSERT_EQ(plain.find('\n'), std::string::npos);
                        ASSERT_EQ(valid_utf8(plain), plain);
                        ASSERT_TRUE(colour || plain == line);
                        ASSERT_TRUE(width % 2 == 0 || state->text_tail().size() > 0 ||
                                    std::all_of(plain.begin(), plain.end(), [](char c) { return c > 0; }));
                    }
                }
            }
        }
    }
}

TEST(LiveRender, AsMuchAsThereIsRoomFor) {
    const LiveState state = busy_state();
    for (const int width : {20, 40, 80, 200}) {
        for (int height = 4; height <= 12; ++height)
            EXPECT_EQ(static_cast<int>(render_live(state, width, height, false, true).size()), height) << width;
    }
}

// As much of a terminal as the view uses, with everything that scrolled off.
class Screen {
  public:
    Screen(int width, int height) : width_(width), height_(height), rows_(1) {}
    void write(const std::string& bytes) {
        for (size_t at = 0; at < bytes.size();) {
            if (bytes[at] == '\033') {
                size_t end = at + 2;
                while (end < bytes.size() && std::isalpha(static_cast<unsigned char>(bytes[end])) == 0) ++end;
                control(bytes.substr(at + 2, end - at - 2), bytes[end]);
                at = end + 1;
                continue;
            }
            const CodePoint c = code_point_at(bytes, at);
            at += c.bytes;
            if (c.value == '\r') {
                column_ = 0;
            } else if (c.value == '\n') {
                down();
            } else {
                put(c.value);
            }
        }
    }
    [[nodiscard]] std::string text() const {
        std::string out;
        for (const std::u32string& row : rows_) {
            std::string line;
            for (const char32_t c : row) append_utf8(line, c);
            while (!line.empty() && line.back() == ' ') line.pop_back();
            out += line + "\n";
        }
        while (out.ends_with("\n\n")) out.pop_back();
        return out;
    }
    [[nodiscard]] bool cursor_visible() const { return cursor_visible_; }
    [[nodiscard]] int unknown() const { return unknown_; }

  private:
    void down() {
        if (++row_ == rows_.size()) rows_.emplace_back();
    }
    void put(char32_t c) {
        if (column_ == width_) {
            column_ = 0;
            down();
        }
        std::u32string& row = rows_[row_];
        if (row.size() <= static_cast<size_t>(column_)) row.resize(static_cast<size_t>(column_) + 1, U' ');
        row[static_cast<size_t>(column_++)] = c;
    }
    void control(const std::string& arguments, char what) {
        const int n = arguments.empty() || arguments[0] == '?' ? 1 : std::stoi(arguments);
        const size_t top =
            rows_.size() > static_cast<size_t>(height_) ? rows_.size() - static_cast<size_t>(height_) : 0;
        if (what == 'A') {
            row_ = row_ > top + static_cast<size_t>(n) ? row_ - static_cast<size_t>(n) : top;
        } else if (what == 'C') {
            column_ = std::min(width_ - 1, column_ + n);
        } else if (what == 'K' || what == 'J') {
            if (rows_[row_].size() > static_cast<size_t>(column_)) rows_[row_].resize(static_cast<size_t>(column_));
            if (what == 'J') rows_.resize(row_ + 1);
        } else if (arguments == "?25") {
            cursor_visible_ = what == 'h';
        } else if (what != 'm') {
            ++unknown_;
        }
    }
    int width_, height_;
    std::vector<std::u32string> rows_;
    size_t row_ = 0;
    int column_ = 0;
    bool cursor_visible_ = true;
    int unknown_ = 0;
};

// A terminal of our own, so that the view sees one. It holds few bytes; a thread empties it.
class Pty {
  public:
    Pty(int width, int height) {
        winsize size{};
        size.ws_col = static_cast<unsigned short>(width);
        size.ws_row = static_cast<unsigned short>(height);
        termios raw{};
        cfmakeraw(&raw);
        EXPECT_EQ(openpty(&master_, &slave_, nullptr, &raw, &size), 0);
        reader_ = std::thread([this] {
            char buffer[4096];
            for (ssize_t n = 0; (n = read(master_, buffer, sizeof buffer)) > 0;) {
                const std::lock_guard lock(mutex_);
                bytes_.append(buffer, static_cast<size_t>(n));
                more_.notify_all();
            }
        });
    }
    ~Pty() {
        close(slave_);  // which ends the reading
        reader_.join();
        close(master_);
    }
    Pty(const Pty&) = delete;
    Pty& operator=(const Pty&) = delete;
    [[nodiscard]] int fd() const { return slave_; }
    // All that was written since the last time. A mark tells where that ends.
    std::string take() {
        EXPECT_EQ(write(slave_, "\x05", 1), 1);
        std::unique_lock lock(mutex_);
        more_.wait(lock, [&] { return bytes_.find('\x05') != std::string::npos; });
        std::string out = bytes_.substr(0, bytes_.find('\x05'));
        bytes_.clear();
        return out;
    }

  private:
    int master_ = -1, slave_ = -1;
    std::thread reader_;
    std::mutex mutex_;
    std::condition_variable more_;
    std::string bytes_;
};

class LiveViewTest : public testing::Test {
  protected:
    void SetUp() override {
        setenv("TERM", "xterm-256color", 1);
        setenv("LC_ALL", "C.UTF-8", 1);
        setenv("NO_COLOR", "1", 1);
    }
    void TearDown() override {
        for (const char* name : {"TERM", "LC_ALL", "NO_COLOR"}) unsetenv(name);
    }
};

TEST_F(LiveViewTest, TheWholeTextStaysAboveThePanel) {
    for (const auto& [width, height] : {std::pair{80, 24}, {30, 10}, {20, 6}, {10, 3}, {4, 2}}) {
        Pty pty(width, height);
        Screen screen(width, height);
        VirtualClock clock;
        Random random(static_cast<uint64_t>(width));
        std::string text;
        {
            LiveView view(pty.fd(), true, clock);
            ASSERT_TRUE(view.prints_text());
            Book book;
            for (int i = 0; i < 200; ++i) {
                std::string word(1 + random.below(9), static_cast<char>('a' + random.below(26)));
                word += random.below(6) == 0 ? "\n" : " ";
                text += word;
                const Row row = token(random, 48);
                book.of(Phase::decode).add(row);
                clock.advance_to(clock.now() + 100'000'000);
                ASSERT_TRUE(view.row(book, row, word).ok());
                screen.write(pty.take());
                ASSERT_TRUE(screen.cursor_visible());
            }
            EXPECT_TRUE(height < 10 || screen.text().find("speed") != std::string::npos);
            ASSERT_TRUE(view.end(book).ok());
            screen.write(pty.take());
        }
        EXPECT_EQ(screen.unknown(), 0);
        Screen plain(width, height);
        for (const char c : text) plain.write(c == '\n' ? "\r\n" : std::string(1, c));
        // A row that ends at the very edge is followed by a line break of the view's own; blanks do not tell.
        const auto letters = [](std::string s) {
            s.erase(std::remove_if(s.begin(), s.end(), [](char c) { return c == '\n' || c == ' '; }), s.end());
            return s;
        };
        EXPECT_EQ(letters(screen.text()), letters(plain.text())) << width;
        EXPECT_EQ(screen.text().find("speed"), std::string::npos);
    }
}

TEST_F(LiveViewTest, AtMostTenFramesASecondAndNothingIsLost) {
    Pty pty(80, 24);
    Screen screen(80, 24);
    VirtualClock clock;
    LiveView view(pty.fd(), true, clock);
    Book book;
    Row row;
    row.phase = 1;
    int frames = 0;
    for (int i = 0; i < 1000; ++i) {
        clock.advance_to(clock.now() + 1'000'000);
        ASSERT_TRUE(view.row(book, row, "x").ok());
        const std::string bytes = pty.take();
        if (!bytes.empty()) ++frames;
        screen.write(bytes);
    }
    EXPECT_EQ(frames, 10);
    EXPECT_TRUE(view.line("a warning"));
    view.stop();
    screen.write(pty.take());
    const std::string text = screen.text();
    EXPECT_EQ(std::count(text.begin(), text.end(), 'x'), 1000);
    EXPECT_NE(text.find("\na warning\n"), std::string::npos);
    EXPECT_FALSE(view.line("later"));
}

TEST_F(LiveViewTest, ControlCharactersOfTheTextDoNothing) {
    Pty pty(80, 24);
    Screen screen(80, 24);
    VirtualClock clock;
    LiveView view(pty.fd(), true, clock);
    view.text("a\033[2J\a\b\rb\tc\xff");
    view.stop();
    screen.write(pty.take());
    EXPECT_EQ(screen.text(), "a[2Jb   c\xEF\xBF\xBD\n");
}

TEST_F(LiveViewTest, NoTerminalNoDrawing) {
    VirtualClock clock;
    {
        LiveView view(STDIN_FILENO + 1000, true, clock);
        EXPECT_FALSE(view.draws());
        EXPECT_FALSE(view.prints_text());
        view.text("x");
        Row row;
        EXPECT_TRUE(view.row(Book(), row, "x").ok());
    }
    Pty pty(80, 24);
    setenv("TERM", "dumb", 1);
    LiveView view(pty.fd(), true, clock);
    EXPECT_FALSE(view.draws());
    view.text("x");
    view.stop();
    EXPECT_EQ(pty.take(), "");
}

TEST_F(LiveViewTest, ColourOnlyWhereItIsWelcome) {
    const LiveState state = busy_state();
    VirtualClock clock;
    Book book;
    Row row;
    row.phase = 1;
    for (const bool colour : {false, true}) {
        if (colour) unsetenv("NO_COLOR");
        Pty pty(80, 24);
        LiveView view(pty.fd(), false, clock);
        EXPECT_FALSE(view.prints_text());
        ASSERT_TRUE(view.row(book, row, "text that others print").ok());
        const std::string bytes = pty.take();
        EXPECT_EQ(bytes.find("\033[90m") != std::string::npos, colour);
        EXPECT_NE(bytes.find("text that others print"), std::string::npos);  // in the panel
    }
}

}  // namespace
}  // namespace sluice::trace
