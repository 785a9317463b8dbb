// Owns: the two types by which every room reports failure. No exception crosses a room's interface.
// Keeps: an error always carries a code for programs and one sentence for people; a Result holds a value or an error,
// never both and never neither.
#pragma once

#include <fmt/core.h>

#include <cassert>
#include <optional>
#include <string>
#include <utility>

namespace sluice {

enum class Code {
    ok,
    invalid_argument,  // the caller or the user asked for something that cannot be
    not_found,         // a file, tensor or option that does not exist
    unsupported,       // valid, but not something this version handles
    io_error,          // the operating system failed a read, open or map
    corrupt,           // bytes that contradict each other or their description
    conflict,          // two sound descriptions of one thing differ, and nobody knows which of them is right
    no_memory,         // the budget or the machine cannot hold it
    cancelled,         // somebody asked for it to stop
    internal,          // a broken invariant of our own
};

// One word per code, for logs and tests.
const char* code_name(Code code);

// Success, or a code with a sentence. Copyable; immutable except by assignment.
class [[nodiscard]] Status {
  public:
    Status() = default;
    Status(Code code, std::string message) : code_(code), message_(std::move(message)) { assert(code != Code::ok); }

    [[nodiscard]] bool ok() const { return code_ == Code::ok; }
    explicit operator bool() const { return ok(); }
    [[nodiscard]] Code code() const { return code_; }
    [[nodiscard]] const std::string& message() const { return message_; }

    // The same error seen from further out: "context: message".
    [[nodiscard]] Status within(const std::string& context) const {
        return ok() ? Status() : Status(code_, context + ": " + message_);
    }

  private:
    Code code_ = Code::ok;
    std::string message_;
};

template <typename... Args>
Status error(Code code, fmt::format_string<Args...> format, Args&&... args) {
    return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

// A T, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
  public:
    Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
    Result(Status status) : status_(std::move(status)) {
        assert(!status_.ok());
    }  // NOLINT(google-explicit-constructor)

    [[nodiscard]] bool ok() const { return value_.has_value(); }
    explicit operator bool() const { return ok(); }
    [[nodiscard]] const Status& status() const { return status_; }

    T& value() & { return *value_; }
    const T& value() const& { return *value_; }
    T&& value() && { return std::move(*value_); }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

  private:
    std::optional<T> value_;
    Status status_;
};

}  // namespace sluice
