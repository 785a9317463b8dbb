// Owns: `--live`: a panel on the terminal that shows a run while it happens, below the text.
// Keeps: no line is wider than the terminal and no panel higher than it was allowed; the terminal is left usable
// whenever the process ends; every number is a column or figure of the book.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "trace/book.h"

namespace sluice::trace {

// What the panel shows.
class LiveState final : public Sink {
  public:
    Status begin(const Book& book) override;
    Status model(const Book& book, size_t number) override;
    Status cache(const Book& book, const Json& cache) override;
    Status row(const Book& book, const Row& row, std::string_view text) override;
    // Text that came with no row, such as the prompt.
    void add_text(std::string_view text);

    [[nodiscard]] const std::string& model_name() const { return model_; }
    [[nodiscard]] const Json& cache() const { return cache_; }
    [[nodiscard]] const Totals& of(Phase phase) const { return phases_[static_cast<size_t>(phase)]; }
    [[nodiscard]] const Row& newest() const { return all_.sum; }
    // Of the last few tokens.
    [[nodiscard]] Totals recent() const;
    [[nodiscard]] const std::deque<Nanos>& token_times() const { return times_; }
    [[nodiscard]] const std::string& text_tail() const { return tail_; }

    bool show_text = true;  // false where the text is seen above the panel

  private:
    std::string model_;
    Json cache_;
    std::array<Totals, 2> phases_;
    Totals all_;
    std::deque<Row> recent_;
    std::deque<Nanos> times_;
    std::string tail_;
};

// At most `height` lines of at most `width` columns, without line ends. What does not fit is left out, the least
// important first.
std::vector<std::string> render_live(const LiveState& state, int width, int height, bool colour, bool unicode);

// Draws the panel on a terminal and, if told to, the text above it, where it scrolls as ever.
//
// Thread-safe. A frame is one write, and between frames the cursor is visible and no colour is on: a process that is
// killed leaves a usable terminal with the last panel on it.
class LiveView final : public Sink {
  public:
    // `fd` stays open. Draws nothing where it is no terminal or one that cannot move its cursor (TERM=dumb).
    // `prints_text`: the text goes to this terminal, so the view prints it; otherwise the caller does, elsewhere.
    LiveView(int fd, bool prints_text, const Clock& clock = SystemClock::instance());
    ~LiveView() override;
    LiveView(const LiveView&) = delete;
    LiveView& operator=(const LiveView&) = delete;

    [[nodiscard]] bool draws() const { return draws_; }
    // Then nobody else may write to the terminal until end().
    [[nodiscard]] bool prints_text() const { return draws_ && prints_text_; }

    Status begin(const Book& book) override;
    Status model(const Book& book, size_t number) override;
    Status cache(const Book& book, const Json& cache) override;
    Status row(const Book& book, const Row& row, std::string_view text) override;
    // The panel goes, the text stays.
    Status end(const Book& book) override;

    // Text that came with no row.
    void text(std::string_view text);
    // A whole line for people, such as a warning, above the panel. False: nothing is drawn, the caller has to print it.
    bool line(std::string_view line);
    // Draws if a frame is due: for callers who want text on the screen that came soon after a frame.
    void tick();
    // The panel goes and the terminal is left on a line of its own. Nothing is drawn afterwards.
    void stop();

  private:
    struct Size {
        int width = 80, height = 24;
    };
    [[nodiscard]] Size size() const;
    void add_text(std::string_view text);
    void draw(bool last);
    [[nodiscard]] std::string leave_panel(Size now, bool wipe);
    void append_text(std::string& out, int width);

    const int fd_;
    const bool prints_text_;
    const Clock& clock_;
    bool draws_ = false, colour_ = false, unicode_ = false, reflows_ = true;

    std::mutex mutex_;
    LiveState state_;
    std::string pending_;     // text not yet on the screen
    int column_ = 0;          // where the text on the screen ends
    std::vector<int> panel_;  // columns of each line of the panel on the screen
    Size drawn_;
    bool has_frame_ = false;
    Nanos last_frame_ = 0;
};

}  // namespace sluice::trace
