#include "trace/live.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/bytes.h"
#include "base/write_all.h"
#include "trace/json_values.h"
#include "trace/utf8.h"

namespace sluice::trace {
namespace {

constexpr size_t kRecentRows = 8;
constexpr size_t kTimes = 512;
constexpr size_t kTail = 8192;  // bytes of text kept for the panel
constexpr Nanos kFrame = 100'000'000;
constexpr int kLabel = 7;  // columns in front of each line's values
constexpr double kWorthSaying = 0.005;

// What a part looks like in the bar: its letter without colour, its colour with.
struct Look {
    char letter;
    const char* colour;
};
constexpr std::array<Look, kParts> kLooks = {{
    {'o', "90"},
    {'d', "34"},
    {'r', "94"},
    {'s', "96"},
    {'e', "32"},
    {'w', "31"},
    {'j', "91"},
    {'l', "91"},
    {'x', "91"},
    {'c', "35"},
    {'m', "33"},
    {'S', "36"},
    {'D', "36"},
    {'P', "36"},
    {'f', "95"},
    {'R', "90"},
}};

// One line being filled from the left.
class Line {
  public:
    Line(int width, bool colour) : left_(width), colour_(colour) {}
    [[nodiscard]] int left() const { return left_; }
    // Cut at the edge. `sgr`: the colour, empty for none.
    void add(std::string_view text, std::string_view sgr = "") {
        const bool coloured = colour_ && !sgr.empty();
        if (coloured) out_ += fmt::format("\033[{}m", sgr);
        for (size_t at = 0; at < text.size();) {
            const CodePoint c = code_point_at(text, at);
            const int columns = columns_of(c.value);
            at += c.bytes;
            if (columns < 0) continue;
            if (columns > left_) break;
            append_utf8(out_, c.value);
            left_ -= columns;
        }
        if (coloured) out_ += "\033[0m";
    }
    // Before and after the value; nothing where there is none. The first value of a line says that it was not measured.
    void value(std::string_view before, const std::string& value, std::string_view after = "",
               std::string_view sgr = "") {
        if (!value.empty()) {
            item(fmt::format("{}{}{}", before, value, after), sgr);
        } else if (n_items_ == 0) {
            item("not measured");
        }
    }
    // Two blanks and the text, if both fit; the first one is cut instead.
    bool item(std::string_view text, std::string_view sgr = "") {
        if (n_items_ > 0) {
            if (columns_of(text) + 2 > left_) return false;
            add("  ");
        }
        add(text, sgr);
        ++n_items_;
        return true;
    }
    [[nodiscard]] std::string text() const { return out_; }

  private:
    std::string out_;
    int left_;
    bool colour_;
    int n_items_ = 0;
};

using Value = std::optional<double>;

// Empty where it was not measured.
std::string spelled(Value v, int decimals, std::string_view unit, double by = 1) {
    return v ? fmt::format("{:.{}f}{}", *v * by, decimals, unit) : "";
}

std::string size_of(Measure m) {
    return m.known() ? human_bytes(static_cast<uint64_t>(std::max<int64_t>(0, m.value()))) : "";
}

class Panel {
  public:
    Panel(const LiveState& state, int width, int height, bool colour, bool unicode)
        : s_(state), width_(width), height_(height), colour_(colour), unicode_(unicode) {}

    std::vector<std::string> lines() {
        if (width_ < 1 || height_ < 1) return {};
        // In the order of importance; shown in the order of their places.
        put(1, {speed()});
        put(2, {bar()});
        put(4, {cache()});
        put(6, {drive()});
        put(3, legend());
        put(0, {title()});
        put(8, {tokens()});
        put(7, {memory()});
        put(5, layers());
        if (s_.show_text) put(9, text());
        std::stable_sort(chosen_.begin(), chosen_.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
        std::vector<std::string> out;
        for (auto& [place, line] : chosen_) out.push_back(std::move(line));
        return out;
    }

  private:
    // As many of the lines as there is room for.
    void put(int place, std::vector<std::string> lines) {
        for (std::string& line : lines) {
            if (static_cast<int>(chosen_.size()) < height_) chosen_.emplace_back(place, std::move(line));
        }
    }
    [[nodiscard]] const Totals& totals() const {
        const Totals& decode = s_.of(Phase::decode);
        return decode.rows > 0 ? decode : s_.of(Phase::prefill);
    }
    [[nodiscard]] Value of(const char* name) const { return figure(name, totals()); }
    [[nodiscard]] Line line(std::string_view label) const {
        Line l(width_, colour_);
        l.add(fmt::format("{:<{}}", label, kLabel), "90");
        return l;
    }

    [[nodiscard]] std::string title() const {
        Line l(width_, colour_);
        l.item("sluice", "1");
        const Totals& decode = s_.of(Phase::decode);
        l.item(decode.rows > 0 ? fmt::format("token {}", counted_tokens(decode).or_zero())
                               : fmt::format("prompt, {} tokens", s_.of(Phase::prefill).sum.tokens.or_zero()));
        if (!s_.model_name().empty()) l.item(s_.model_name());
        if (l.left() > 1) {
            std::string rule = " ";
            for (int i = 1; i < l.left(); ++i) rule += unicode_ ? "\u2500" : "-";
            l.add(rule, "90");
        }
        return l.text();
    }
    [[nodiscard]] std::string speed() const {
        Line l = line("speed");
        const std::string prompt = spelled(figure("tokens_per_second", s_.of(Phase::prefill)), 2, " tok/s");
        if (s_.of(Phase::decode).rows > 0) {
            l.value("", spelled(figure("tokens_per_second", s_.recent()), 2, " tok/s"), "", "1");
            l.value("average ", spelled(of("tokens_per_second"), 2, ""));
            l.value("", spelled(of("ms_per_token"), 1, " ms"), " per token");
            l.value("prompt ", prompt);
            l.value("bound ", spelled(of("roofline_tokens_per_second"), 2, ""),
                    fmt::format(" ({})", what_binds(totals())));
        } else {
            l.value("prompt ", prompt, "", "1");
        }
        return l.text();
    }
    [[nodiscard]] std::vector<std::pair<double, Part>> shares() const {
        std::vector<std::pair<double, Part>> out;
        for (size_t p = 0; p < kParts; ++p) {
            const Value share = share_of_wall(static_cast<Part>(p), totals());
            if (share && *share > 0) out.emplace_back(std::min(*share, 1.0), static_cast<Part>(p));
        }
        std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
        return out;
    }
    [[nodiscard]] bool blocks() const { return colour_ && unicode_; }
    [[nodiscard]] std::string bar() const {
        Line l = line("time");
        const int cells = l.left();
        double until = 0;
        int drawn = 0;
        for (const auto& [share, part] : shares()) {
            until += share;
            const int end = std::min(cells, static_cast<int>(std::lround(until * cells)));
            std::string run;
            const Look& look = kLooks[static_cast<size_t>(part)];
            for (; drawn < end; ++drawn) run += blocks() ? "\u2588" : std::string(1, look.letter);
            l.add(run, look.colour);
        }
        return l.text();
    }
    [[nodiscard]] std::vector<std::string> legend() const {
        constexpr size_t kLines = 2;
        std::vector<std::string> out;
        Line l = line("");
        bool empty = true;
        for (const auto& [share, part] : shares()) {
            if (share < kWorthSaying) break;
            const Look& look = kLooks[static_cast<size_t>(part)];
            const std::string item = fmt::format("{} {} {:.0f} %", blocks() ? "\u2588" : std::string(1, look.letter),
                                                 part_label(part), 100 * share);
            if (!l.item(item, look.colour)) {
                out.push_back(l.text());
                l = line("");
                if (out.size() == kLines) return out;
                l.item(item, look.colour);
            }
            empty = false;
        }
        if (!empty) out.push_back(l.text());
        return out;
    }
    [[nodiscard]] std::string cache() const {
        Line l = line("cache");
        l.value("hit ", spelled(of("hit_rate"), 1, " %", 100), "", "1");
        l.value("", size_of(measure_in(s_.cache(), "bytes")));
        const Measure slots = measure_in(s_.cache(), "slots");
        const Measure resident = s_.newest().cache_resident;
        if (slots.known() && resident.known()) l.item(fmt::format("{} of {} slots", resident.value(), slots.value()));
        l.value("", spelled(of("physical_bytes_per_token"), 2, " MiB", 1.0 / (1 << 20)), " per token");
        return l.text();
    }
    // One cell per layer, the fuller the more of its look-ups were hits.
    [[nodiscard]] std::vector<std::string> layers() const {
        static constexpr const char* kShades[] = {" ", "\u2591", "\u2592", "\u2593", "\u2588"};
        static constexpr const char* kPlainShades[] = {".", ":", "+", "*", "#"};
        std::vector<std::string> out;
        const std::vector<Row::Layer>& sums = totals().sum.layers;
        for (size_t at = 0; at < sums.size();) {
            Line l = line(at == 0 ? "layers" : "");
            if (l.left() < 3) break;
            l.add(unicode_ ? "\u2502" : "|", "90");
            std::string cells;
            for (int room = l.left() - 1; at < sums.size() && room > 0; --room) {
                const Value rate = hit_rate(sums[at++]);
                const int shade = rate ? std::clamp(static_cast<int>(std::lround(*rate * 4)), 0, 4) : 0;
                cells += !rate ? "-" : unicode_ ? kShades[shade] : kPlainShades[shade];
            }
            l.add(cells, "32");
            l.add(unicode_ ? "\u2502" : "|", "90");
            out.push_back(l.text());
        }
        return out;
    }
    [[nodiscard]] std::string drive() const {
        Line l = line("drive");
        l.value("", spelled(of("drive_bytes_per_second"), 0, " MiB/s", 1.0 / (1 << 20)), "", "1");
        l.value("waiting ", spelled(of("exposed_wait_fraction"), 0, " %", 100));
        l.value("p50 ", spelled(of("read_p50_ms"), 2, " ms"));
        l.value("p99 ", spelled(of("read_p99_ms"), 2, " ms"));
        const Measure depth = totals().sum.queue_depth_max;
        if (depth.known()) l.item(fmt::format("{} at once", depth.value()));
        l.value("hidden ", spelled(of("hidden_fraction"), 0, " %", 100));
        return l.text();
    }
    [[nodiscard]] std::string memory() const {
        Line l = line("memory");
        const Row& n = s_.newest();
        l.value("", size_of(n.rss), "", "1");
        l.value("available ", size_of(n.mem_available));
        l.value("swapped ", size_of(n.swap));
        l.value("major faults ", spelled(of("major_faults_per_token"), 2, " per token"));
        return l.text();
    }
    [[nodiscard]] std::string tokens() const {
        static constexpr const char* kBars[] = {"\u2581", "\u2582", "\u2583", "\u2584",
                                                "\u2585", "\u2586", "\u2587", "\u2588"};
        static constexpr const char* kPlainBars[] = {"_", ".", ",", "-", "=", "+", "*", "#"};
        Line l = line("tokens");
        const std::deque<Nanos>& times = s_.token_times();
        if (times.empty()) return l.text();
        const std::string last = fmt::format(" {:.1f} ms", static_cast<double>(times.back()) * 1e-6);
        const auto room = static_cast<size_t>(std::max(0, l.left() - columns_of(last)));
        const size_t n = std::min(room, times.size());
        const auto begin = times.end() - static_cast<std::ptrdiff_t>(n);
        const Nanos most = n > 0 ? std::max<Nanos>(1, *std::max_element(begin, times.end())) : 1;
        std::string bars;
        for (auto t = begin; t != times.end(); ++t) {
            const auto height = static_cast<size_t>(
                std::clamp(std::lround(8.0 * static_cast<double>(*t) / static_cast<double>(most)) - 1L, 0L, 7L));
            bars += unicode_ ? kBars[height] : kPlainBars[height];
        }
        l.add(bars, "36");
        l.add(last);
        return l.text();
    }
    // The last rows of the text, as a terminal of this width would break it.
    [[nodiscard]] std::vector<std::string> text() const {
        const size_t room = static_cast<size_t>(std::max(0, height_ - static_cast<int>(chosen_.size())));
        if (room == 0) return {};
        std::deque<std::string> rows(1);
        int used = 0;
        const std::string& tail = s_.text_tail();
        for (size_t at = 0; at < tail.size();) {
            const CodePoint c = code_point_at(tail, at);
            at += c.bytes;
            const int columns = columns_of(c.value);
            if (c.value == '\n' || (columns > 0 && used + columns > width_)) {
                rows.emplace_back();
                used = 0;
                if (rows.size() > room + 1) rows.pop_front();
            }
            if (columns < 0 || columns > width_) continue;
            append_utf8(rows.back(), c.value);
            used += columns;
        }
        while (rows.size() > room) rows.pop_front();
        return {rows.begin(), rows.end()};
    }

    const LiveState& s_;
    int width_, height_;
    bool colour_, unicode_;
    std::vector<std::pair<int, std::string>> chosen_;
};

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

bool speaks_utf8() {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
        std::string value = variable(name);
        if (value.empty()) continue;
        std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
        return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
    }
    return false;
}

}  // namespace

Status LiveState::begin(const Book&) {
    return {};
}

Status LiveState::model(const Book& book, size_t number) {
    model_ = valid_utf8(text_in(book.models[number], "name"));
    return {};
}

Status LiveState::cache(const Book&, const Json& cache) {
    cache_ = cache;
    return {};
}

Status LiveState::row(const Book& book, const Row& row, std::string_view text) {
    phases_ = book.phases;
    all_.add(row);
    if (row.phase == Measure(static_cast<int64_t>(Phase::decode))) {
        recent_.push_back(row);
        if (recent_.size() > kRecentRows) recent_.pop_front();
        if (row.wall.known()) times_.push_back(row.wall.value());
        if (times_.size() > kTimes) times_.pop_front();
    }
    add_text(text);
    return {};
}

void LiveState::add_text(std::string_view text) {
    tail_ += valid_utf8(text);
    if (tail_.size() > 2 * kTail) tail_ = valid_utf8(std::string_view(tail_).substr(tail_.size() - kTail));
}

Totals LiveState::recent() const {
    Totals totals;
    for (const Row& row : recent_) totals.add(row);
    return totals;
}

std::vector<std::string> render_live(const LiveState& state, int width, int height, bool colour, bool unicode) {
    return Panel(state, width, height, colour, unicode).lines();
}

LiveView::LiveView(int fd, bool prints_text, const Clock& clock) : fd_(fd), prints_text_(prints_text), clock_(clock) {
    const std::string terminal = variable("TERM");
    draws_ = isatty(fd) == 1 && !terminal.empty() && terminal != "dumb";
    colour_ = variable("NO_COLOR").empty();
    unicode_ = speaks_utf8();
    // Most terminals break long lines anew when they become narrower; these do not.
    reflows_ = !variable("TMUX").empty() || (variable("XTERM_VERSION").empty() && variable("STY").empty());
    state_.show_text = !prints_text_;
}

LiveView::~LiveView() {
    stop();
}

Status LiveView::begin(const Book& book) {
    const std::lock_guard lock(mutex_);
    return state_.begin(book);
}

Status LiveView::model(const Book& book, size_t number) {
    const std::lock_guard lock(mutex_);
    return state_.model(book, number);
}

Status LiveView::cache(const Book& book, const Json& cache) {
    const std::lock_guard lock(mutex_);
    return state_.cache(book, cache);
}

Status LiveView::row(const Book& book, const Row& row, std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (!draws_) return {};
    Status status = state_.row(book, row, text);
    if (prints_text_) pending_ += text;
    draw(false);
    return status;
}

Status LiveView::end(const Book&) {
    stop();
    return {};
}

void LiveView::text(std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (!draws_) return;
    state_.add_text(text);
    if (prints_text_) pending_ += text;
    draw(false);
}

bool LiveView::line(std::string_view line) {
    const std::lock_guard lock(mutex_);
    if (!draws_) return false;
    if (column_ > 0 || (!pending_.empty() && pending_.back() != '\n')) pending_ += '\n';
    pending_ += line;
    pending_ += '\n';
    draw(false);
    return true;
}

void LiveView::tick() {
    const std::lock_guard lock(mutex_);
    draw(false);
}

void LiveView::stop() {
    const std::lock_guard lock(mutex_);
    draw(true);
    draws_ = false;
}

LiveView::Size LiveView::size() const {
    winsize w{};
    if (ioctl(fd_, TIOCGWINSZ, &w) != 0 || w.ws_col == 0 || w.ws_row == 0) return {};
    return {w.ws_col, w.ws_row};
}

// Moves to where the panel began and, if the text goes on in the row above, there. `wipe`: its rows become blank.
std::string LiveView::leave_panel(Size now, bool wipe) {
    if (panel_.empty()) return "";
    const bool narrower = now.width < drawn_.width && reflows_;
    const auto rows_of = [&](int columns) { return narrower ? std::max(1, (columns + now.width - 1) / now.width) : 1; };
    int above = 0;  // the cursor is in the first column of the last line
    for (size_t i = 0; i + 1 < panel_.size(); ++i) above += rows_of(panel_[i]);
    const bool moved = now.width != drawn_.width || above + rows_of(panel_.back()) >= now.height;
    panel_.clear();
    std::string out = "\r";
    if (wipe || moved) {
        // Row by row: a terminal may take erasing the whole screen for a reason to keep it in its scrollback.
        out += "\033[J";
        for (int i = 0; i < above; ++i) out += "\033[A\033[K";
    } else if (above > 0) {
        out += fmt::format("\033[{}A", above);
    }
    if (moved) {
        column_ = 0;  // nobody knows where the text ends now; it goes on in a row of its own
    } else if (column_ > 0) {
        out += fmt::format("\033[A\033[{}C", column_);
    }
    return out;
}

// Writes pending text from `column_` on and follows where the terminal puts it.
void LiveView::append_text(std::string& out, int width) {
    for (size_t at = 0; at < pending_.size();) {
        const CodePoint c = code_point_at(pending_, at);
        at += c.bytes;
        if (c.value == '\n') {
            out += "\r\n";
            column_ = 0;
            continue;
        }
        if (c.value == '\t') {
            const int blanks = std::min(8 - column_ % 8, width - column_);
            out.append(static_cast<size_t>(blanks), ' ');
            column_ += blanks;
        } else {
            const int columns = columns_of(c.value);
            // Other control characters could move the cursor, and then the panel would erase text.
            if (columns < 0 || columns > width) continue;
            if (column_ + columns > width) column_ = 0;  // the terminal begins a new row by itself
            append_utf8(out, c.value);
            column_ += columns;
        }
    }
    pending_.clear();
    if (column_ >= width) {
        // It would begin a new row only with the next character; the panel needs to know.
        out += "\r\n";
        column_ = 0;
    }
}

void LiveView::draw(bool last) {
    if (!draws_) return;
    const Nanos now = clock_.now();
    if (!last && has_frame_ && now - last_frame_ < kFrame) return;
    if (last && !has_frame_ && pending_.empty()) return;
    const Size size = this->size();

    std::string out = "\033[?25l";
    out += leave_panel(size, last || !pending_.empty());
    append_text(out, size.width);
    if (last) {
        if (column_ > 0) out += "\r\n";
        column_ = 0;
    } else {
        // Half of the screen at most, so that the text is seen; and no line touches the edge, where terminals differ.
        const int height = std::min(std::max(4, size.height / 2), size.height - 2);
        const std::vector<std::string> lines = render_live(state_, size.width - 1, height, colour_, unicode_);
        if (column_ > 0 && !lines.empty()) out += "\r\n";
        for (size_t i = 0; i < lines.size(); ++i) {
            out += (i > 0 ? "\r\n" : "") + lines[i] + "\033[K";
            int columns = 0;
            bool escape = false;
            for (size_t at = 0; at < lines[i].size();) {
                const CodePoint c = code_point_at(lines[i], at);
                at += c.bytes;
                if (c.value == 0x1B) escape = true;
                if (!escape) columns += std::max(0, columns_of(c.value));
                if (c.value == 'm') escape = false;
            }
            panel_.push_back(columns);
        }
        if (!lines.empty()) out += "\033[J\r";
    }
    out += "\033[?25h";
    drawn_ = size;
    has_frame_ = true;
    last_frame_ = now;
    if (write_all(fd_, out) != 0) draws_ = false;  // the terminal is gone
}

}  // namespace sluice::trace
