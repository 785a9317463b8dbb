// Owns: the run record as a file of JSON lines: writing it, and reading it back for every other output.
// Keeps: each line is whole when it reaches the file, so a killed run leaves a readable record up to there; a column
// that was not measured is written as null.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "trace/book.h"

namespace sluice::trace {

// A file that outputs are written to, line by line. A path that cannot be opened, is a model, or is being written
// already is an error of open(); what the file held is kept until the first write.
class LineFile {
  public:
    static Result<std::unique_ptr<LineFile>> open(const std::string& path);
    ~LineFile();
    LineFile(const LineFile&) = delete;
    LineFile& operator=(const LineFile&) = delete;
    // Writes all bytes; the text ends with a newline.
    Status write(std::string_view text);
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    LineFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
    int fd_;
    std::string path_;
    bool regular_ = false, begun_ = false;
};

// "--record": every line described in docs/record.md.
std::unique_ptr<Sink> make_record_sink(std::unique_ptr<LineFile> file);

// A row as one JSON line with its newline, appended to `out`. Allocates only when `out` must grow.
void append_row_json(fmt::memory_buffer& out, const Row& row);

// A record that was read back. Totals are made anew from the rows, by the same code that made them in the run.
struct Record {
    std::string path;
    Book book;
    std::vector<Row> rows;
    bool ended = false;      // it has its last line; otherwise the run was killed or is still going on
    bool cut_short = false;  // its last line is broken off
};
// Errors: not a record, a newer schema, a line in the middle that does not parse (with its number).
// `path` is what it is called, where its bytes are to be read from another place.
Result<Record> read_record(const std::string& file_path, const std::string& path);
inline Result<Record> read_record(const std::string& path) {
    return read_record(path, path);
}

// Feeds a record to an output, as the run would have.
Status replay(const Record& record, Sink& sink);

}  // namespace sluice::trace
