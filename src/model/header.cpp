// Owns: reading one GGUF header from memory.
// Keeps: no byte beyond the prefix is touched, no count or length is believed before it was bounded, and memory grows
// only with bytes that are really there.
#include <bit>
#include <cstring>
#include <exception>
#include <new>
#include <type_traits>
#include <utility>

#include "base/bytes.h"
#include "model/gguf.h"
#include "model/text.h"

namespace sluice::model {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in the file");

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kDefaultAlignment = 32;

// GGUF's numbering of metadata types.
enum class MetaType : uint32_t {
    u8 = 0,
    i8 = 1,
    u16 = 2,
    i16 = 3,
    u32 = 4,
    i32 = 5,
    f32 = 6,
    boolean = 7,
    string = 8,
    array = 9,
    u64 = 10,
    i64 = 11,
    f64 = 12,
};

// 0 for strings, arrays and unknown types.
uint64_t scalar_bytes(MetaType type) {
    switch (type) {
        case MetaType::u8:
        case MetaType::i8:
        case MetaType::boolean:
            return 1;
        case MetaType::u16:
        case MetaType::i16:
            return 2;
        case MetaType::u32:
        case MetaType::i32:
        case MetaType::f32:
            return 4;
        case MetaType::u64:
        case MetaType::i64:
        case MetaType::f64:
            return 8;
        case MetaType::string:
        case MetaType::array:
            return 0;
    }
    return 0;
}

template <typename T>
T load(const char* bytes) {
    T value{};
    std::memcpy(&value, bytes, sizeof(T));
    return value;
}

MetaValue load_scalar(MetaType type, const char* bytes) {
    switch (type) {
        case MetaType::u8:
            return uint64_t{load<uint8_t>(bytes)};
        case MetaType::i8:
            return int64_t{load<int8_t>(bytes)};
        case MetaType::u16:
            return uint64_t{load<uint16_t>(bytes)};
        case MetaType::i16:
            return int64_t{load<int16_t>(bytes)};
        case MetaType::u32:
            return uint64_t{load<uint32_t>(bytes)};
        case MetaType::i32:
            return int64_t{load<int32_t>(bytes)};
        case MetaType::f32:
            return double{load<float>(bytes)};
        // Not loaded as a bool: any other byte than 0 and 1 would be undefined behaviour.
        case MetaType::boolean:
            return load<uint8_t>(bytes) != 0;
        case MetaType::u64:
            return load<uint64_t>(bytes);
        case MetaType::i64:
            return load<int64_t>(bytes);
        case MetaType::f64:
            return load<double>(bytes);
        case MetaType::string:
        case MetaType::array:
            break;
    }
    return Omitted{};
}

// Outcome of one parsing step. `short_of_bytes` is not an error: the caller may come back with a longer prefix.
enum class Step { done, short_of_bytes, failed };

class HeaderParser {
  public:
    explicit HeaderParser(std::string_view head) : head_(head) {}

    Step run() {
        if (const Step step = preamble(); step != Step::done) return step;
        for (uint64_t i = 0; i < n_pairs_; i++) {
            if (const Step step = pair(); step != Step::done) return step;
        }
        if (const Step step = alignment(); step != Step::done) return step;
        header_.tensors.clear();
        for (uint64_t i = 0; i < n_tensors_; i++) {
            if (const Step step = tensor(); step != Step::done) return step;
        }
        return place();
    }

    ParsedHeader take_header() { return std::move(header_); }
    Status take_failure() { return std::move(failure_); }

  private:
    template <typename... Args>
    Step fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
        failure_ = error(code, format, std::forward<Args>(args)...);
        return Step::failed;
    }

    [[nodiscard]] uint64_t left() const { return head_.size() - at_; }

    // False, and nothing taken, when the prefix ends before `n` bytes.
    bool take(uint64_t n, std::string_view& out) {
        if (n > left()) return false;
        out = head_.substr(at_, n);
        at_ += n;
        return true;
    }

    template <typename T>
    bool number(T& out) {
        static_assert(std::is_integral_v<T>);
        std::string_view bytes;
        if (!take(sizeof(T), bytes)) return false;
        out = load<T>(bytes.data());
        return true;
    }

    // The view is into the prefix. `what` and `whose` are for the message alone.
    Step string(uint64_t limit, const char* what, std::string_view whose, std::string_view& out) {
        uint64_t length = 0;
        if (!number(length)) return Step::short_of_bytes;
        if (length > limit) {
            return fail(Code::corrupt, "{} {} claims a length of {} bytes, at most {} are allowed", what, quoted(whose),
                        length, limit);
        }
        return take(length, out) ? Step::done : Step::short_of_bytes;
    }

    Step preamble() {
        const std::string_view start = head_.substr(0, kMagic.size());
        if (start != kMagic.substr(0, start.size())) {
            return fail(Code::invalid_argument, "not a GGUF file: it begins with {} instead of 'GGUF'", quoted(start));
        }
        at_ = start.size();
        uint32_t version = 0;
        if (start.size() < kMagic.size() || !number(version)) return Step::short_of_bytes;
        // Any real version is small, so the other byte order shows in the low half.
        if (version != 0 && (version & 0xffffU) == 0) {
            return fail(Code::unsupported, "the file is big-endian; only little-endian GGUF files can be read here");
        }
        if (version == 1) {
            return fail(Code::unsupported, "GGUF version 1 is no longer supported; convert the model again");
        }
        if (version != 2 && version != 3) {
            return fail(Code::unsupported, "GGUF version {} is unknown; versions 2 and 3 can be read", version);
        }
        if (!number(n_tensors_) || !number(n_pairs_)) return Step::short_of_bytes;
        if (n_tensors_ > kMaxTensors) {
            return fail(Code::corrupt, "the header claims {} tensors, at most {} are allowed", n_tensors_, kMaxTensors);
        }
        if (n_pairs_ > kMaxMetaPairs) {
            return fail(Code::corrupt, "the header claims {} metadata entries, at most {} are allowed", n_pairs_,
                        kMaxMetaPairs);
        }
        return Step::done;
    }

    Step pair() {
        std::string_view key;
        const std::string_view place = last_key_.empty() ? std::string_view("the start") : last_key_;
        if (const Step step = string(kMaxKeyLength, "the metadata key after", place, key); step != Step::done) {
            return step;
        }
        if (key.empty()) return fail(Code::corrupt, "the metadata key after {} is empty", quoted(place));
        last_key_ = key;
        uint32_t type = 0;
        if (!number(type)) return Step::short_of_bytes;
        MetaValue value;
        if (const Step step = meta_value(key, static_cast<MetaType>(type), value); step != Step::done) return step;
        if (!header_.meta.emplace(key, std::move(value)).second) {
            return fail(Code::corrupt, "the metadata key {} occurs twice", quoted(key));
        }
        return Step::done;
    }

    Step meta_value(std::string_view key, MetaType type, MetaValue& value) {
        if (type == MetaType::array) return array(key, value);
        if (type == MetaType::string) {
            std::string_view text;
            const Step step = string(kMaxStringLength, "the metadata value of", key, text);
            if (step != Step::done) return step;
            if (text.size() <= kMaxKeptString) {
                value = std::string(text);
            } else {
                value = Omitted{text.size()};
            }
            return Step::done;
        }
        const uint64_t size = scalar_bytes(type);
        if (size == 0) return unknown_type(key, type);
        std::string_view bytes;
        if (!take(size, bytes)) return Step::short_of_bytes;
        value = load_scalar(type, bytes.data());
        return Step::done;
    }

    Step unknown_type(std::string_view key, MetaType type) {
        return fail(Code::corrupt, "the metadata key {} has the unknown type {}", quoted(key),
                    static_cast<uint32_t>(type));
    }

    Step array(std::string_view key, MetaValue& value) {
        uint32_t type_number = 0;
        uint64_t length = 0;
        if (!number(type_number) || !number(length)) return Step::short_of_bytes;
        const auto type = static_cast<MetaType>(type_number);
        if (type == MetaType::array) {
            return fail(Code::unsupported, "the metadata key {} is an array of arrays", quoted(key));
        }
        if (length > kMaxArrayLength) {
            return fail(Code::corrupt, "the metadata key {} claims {} array elements, at most {} are allowed",
                        quoted(key), length, kMaxArrayLength);
        }
        value = Omitted{length};
        if (type == MetaType::string) {
            std::string_view ignored;
            for (uint64_t i = 0; i < length; i++) {
                const Step step = string(kMaxStringLength, "an array element of", key, ignored);
                if (step != Step::done) return step;
            }
            return Step::done;
        }
        const uint64_t size = scalar_bytes(type);
        if (size == 0) return unknown_type(key, type);
        std::string_view bytes;
        // The product cannot overflow: both factors are bounded.
        if (!take(length * size, bytes)) return Step::short_of_bytes;
        if (length <= kMaxKeptArray && type != MetaType::f32 && type != MetaType::f64) {
            keep_integers(type, length, bytes, value);
        }
        return Step::done;
    }

    // Leaves `value` alone if one of them does not fit.
    static void keep_integers(MetaType type, uint64_t length, std::string_view bytes, MetaValue& value) {
        const uint64_t size = scalar_bytes(type);
        std::vector<int64_t> numbers;
        numbers.reserve(length);
        for (uint64_t i = 0; i < length; i++) {
            const MetaValue element = load_scalar(type, bytes.data() + i * size);
            if (const auto* u = std::get_if<uint64_t>(&element)) {
                if (*u > uint64_t{INT64_MAX}) return;
                numbers.push_back(static_cast<int64_t>(*u));
            } else if (const auto* s = std::get_if<int64_t>(&element)) {
                numbers.push_back(*s);
            } else if (const auto* b = std::get_if<bool>(&element)) {
                numbers.push_back(*b ? 1 : 0);
            }
        }
        value = std::move(numbers);
    }

    Step alignment() {
        const auto found = header_.meta.find("general.alignment");
        if (found == header_.meta.end()) return Step::done;
        const auto* value = std::get_if<uint64_t>(&found->second);
        if (value == nullptr) return fail(Code::corrupt, "general.alignment is not an unsigned number");
        if (!is_power_of_two(*value) || *value > kMaxAlignment) {
            return fail(Code::corrupt, "general.alignment is {}, not a power of two up to {}", *value, kMaxAlignment);
        }
        alignment_ = *value;
        return Step::done;
    }

    Step tensor() {
        TensorEntry entry;
        std::string_view name;
        const std::string_view place =
            header_.tensors.empty() ? std::string_view("the start") : std::string_view(header_.tensors.back().name);
        if (const Step step = string(kMaxNameLength, "the tensor name after", place, name); step != Step::done) {
            return step;
        }
        // ggml's names end at a NUL, so two names that differ behind one would be the same tensor there.
        if (name.empty() || name.find('\0') != std::string_view::npos) {
            return fail(Code::corrupt, "the tensor name {} after {} is not a name", quoted(name), quoted(place));
        }
        entry.name = name;
        if (!number(entry.n_dims)) return Step::short_of_bytes;
        if (entry.n_dims > kMaxDims) {
            return fail(Code::corrupt, "tensor {} has {} dimensions, at most {} are possible", quoted(name),
                        entry.n_dims, kMaxDims);
        }
        for (uint32_t d = 0; d < entry.n_dims; d++) {
            if (!number(entry.ne[d])) return Step::short_of_bytes;
        }
        if (!number(entry.type) || !number(entry.offset)) return Step::short_of_bytes;
        if (const Step step = measure(entry); step != Step::done) return step;
        header_.tensors.push_back(std::move(entry));
        return Step::done;
    }

    // Sets entry.bytes from shape and type.
    Step measure(TensorEntry& entry) {
        const TypeTraits* traits = type_traits(entry.type);
        if (traits == nullptr) {
            return fail(Code::unsupported, "tensor {} has type {}, which this version does not know",
                        quoted(entry.name), entry.type);
        }
        if (entry.ne[0] % traits->block_elements != 0) {
            return fail(Code::corrupt, "tensor {} has rows of {} elements, not a multiple of the {} in a block of {}",
                        quoted(entry.name), entry.ne[0], traits->block_elements, traits->name);
        }
        // ggml counts elements and bytes in signed 64 bits, and so must everything that fits here. Every factor is
        // looked at by itself too, because beside a zero any product is small.
        std::optional<uint64_t> bytes = checked_mul(entry.ne[0] / traits->block_elements, traits->block_bytes);
        std::optional<uint64_t> elements = entry.ne[0];
        for (uint32_t d = 1; d < kMaxDims; d++) {
            if (bytes) bytes = checked_mul(*bytes, entry.ne[d]);
            if (elements) elements = checked_mul(*elements, entry.ne[d]);
        }
        bool fits = bytes && elements && *bytes <= uint64_t{INT64_MAX} && *elements <= uint64_t{INT64_MAX};
        for (const uint64_t n : entry.ne) fits = fits && n <= uint64_t{INT64_MAX};
        if (!fits) {
            return fail(Code::corrupt, "tensor {} with shape [{}, {}, {}, {}] is larger than any file",
                        quoted(entry.name), entry.ne[0], entry.ne[1], entry.ne[2], entry.ne[3]);
        }
        entry.bytes = *bytes;
        return Step::done;
    }

    // Turns offsets from "within the data section" into "within the file".
    Step place() {
        // Without tensors nothing is padded: such a file may end right here.
        header_.data_offset = n_tensors_ == 0 ? at_ : align_up(at_, alignment_);
        for (TensorEntry& entry : header_.tensors) {
            if (entry.offset % alignment_ != 0) {
                return fail(Code::corrupt, "tensor {} starts at {} of the data, not a multiple of the alignment {}",
                            quoted(entry.name), entry.offset, alignment_);
            }
            const std::optional<uint64_t> absolute = checked_add(header_.data_offset, entry.offset);
            const std::optional<uint64_t> end = absolute ? checked_add(*absolute, entry.bytes) : std::nullopt;
            if (!end || *end > uint64_t{INT64_MAX}) {
                return fail(Code::corrupt, "tensor {} lies at {} of the data, beyond the end of any file",
                            quoted(entry.name), entry.offset);
            }
            entry.offset = *absolute;
        }
        return Step::done;
    }

    std::string_view head_;
    uint64_t at_ = 0;
    uint64_t n_tensors_ = 0;
    uint64_t n_pairs_ = 0;
    uint64_t alignment_ = kDefaultAlignment;
    std::string_view last_key_;
    ParsedHeader header_;
    Status failure_;
};

}  // namespace

Result<ParseOutcome> parse_gguf_header(std::string_view head) {
    try {
        HeaderParser parser(head);
        ParseOutcome outcome;
        switch (parser.run()) {
            case Step::failed:
                return parser.take_failure();
            case Step::short_of_bytes:
                outcome.needs_more = true;
                break;
            case Step::done:
                outcome.header = parser.take_header();
                break;
        }
        return outcome;
    } catch (const std::bad_alloc&) {
        return Status(Code::no_memory, "not enough memory for the header");
    } catch (const std::exception& e) {
        return error(Code::internal, "reading the header failed: {}", e.what());
    }
}

}  // namespace sluice::model
