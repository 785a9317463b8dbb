// Owns: turning what passes counted into rows, and handing them to the outputs.
// Keeps: an output that fails is dropped with a warning and never stops the run; nothing is written before something
// happened; the run's totals are those of the rows handed out.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "trace/book.h"
#include "trace/pass.h"

namespace sluice::trace {

// What a whole row was made of, for outputs that show single events.
class EventSink {
  public:
    virtual ~EventSink() = default;
    virtual Status events(const Row& row, const Pass& pass) = 0;
    virtual Status end() { return {}; }
};

// Thread-safe.
class Recorder {
  public:
    // Fills the columns of process and machine; `full` at most ten times a second, else only the cheap ones.
    using Sampler = std::function<void(Row& row, bool full)>;

    // `clock` outlives the recorder. `watched`: parts that rows tell apart.
    Recorder(const Clock& clock, PartMask watched, Wants wants) : clock_(clock), watched_(watched), wants_(wants) {}

    void add(std::unique_ptr<Sink> sink) { sinks_.push_back({std::move(sink), true}); }
    void add(std::unique_ptr<EventSink> sink) { event_sinks_.push_back({std::move(sink), true}); }
    void set_sampler(Sampler sampler) { sampler_ = std::move(sampler); }

    [[nodiscard]] PartMask watched() const { return watched_; }
    [[nodiscard]] const Wants& wants() const { return wants_; }
    [[nodiscard]] const Clock& clock() const { return clock_; }
    // A pass that collects what this recorder wants.
    void prepare(Pass& pass) const {
        pass.ledger.watch(watched_);
        pass.wants = wants_;
    }

    // The first line, written when something has happened.
    void set_header(Json header);

    // `shape`: experts of each set. Returns the model's number.
    size_t model(Json info, const std::vector<uint32_t>& shape);
    void cache(size_t model, uint64_t bytes, uint64_t slots, uint64_t records, const std::string& why);
    // How good a model's guesses of its routers' choices were; `scores` by predictor.
    void guesses(size_t model, Json scores);
    // The model is loaded and its context there. `host`: the settings of the program that runs it.
    void load(Nanos duration, uint64_t dense_bytes, Json host);

    // Where a row's numbers come from if not from the pass.
    struct RowInfo {
        Phase phase = Phase::decode;
        Measure output_tokens;
        std::string_view text;
        bool last = false;  // the run's; the machine is asked once more, so that its counts cover all rows
    };
    // The row ends: in a running ledger now, and the next one begins; in a stopped one it has ended already. The pass
    // is cleared. A pass that saw no token of a model makes no row, unless something came out.
    void commit(Pass& pass, const RowInfo& info);
    // Once. Rows after it are ignored.
    void end(Ending ending);

    // What went wrong with outputs so far; the first of it.
    [[nodiscard]] Status status() const;
    // Calls `look` with the book while nothing changes.
    void with_book(const std::function<void(const Book&)>& look) const;

  private:
    template <typename S>
    struct Guarded {
        std::unique_ptr<S> sink;
        bool alive = true;
    };
    template <typename S, typename Call>
    void each_of(std::vector<Guarded<S>>& sinks, Call call);
    void open();
    void failed(const Status& status);
    void fill(Row& row, Pass& pass, const RowInfo& info);
    void sample_rest();
    void keep_cache(size_t model, const Json& line);

    const Clock& clock_;
    const PartMask watched_;
    const Wants wants_;
    Sampler sampler_;

    mutable std::mutex mutex_;
    std::vector<Guarded<Sink>> sinks_;
    std::vector<Guarded<EventSink>> event_sinks_;
    Book book_;
    bool open_ = false, ended_ = false;
    Nanos begin_ = 0;
    Nanos last_sample_ = 0;
    bool sampled_ = false;
    int64_t turn_ = 0;
    int64_t steps_[2] = {0, 0};
    bool turn_has_decode_ = false;
    Phase last_phase_ = Phase::decode;
    Row row_;
    Status status_;
};

}  // namespace sluice::trace
