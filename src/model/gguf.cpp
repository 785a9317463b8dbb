#include "model/gguf.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <exception>
#include <new>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "model/text.h"

namespace sluice::model {
namespace {

constexpr uint64_t kFirstPrefix = 256 * KiB;

class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    [[nodiscard]] int get() const { return fd_; }

  private:
    int fd_;
};

std::string reason(int error_number) {
    return std::generic_category().message(error_number);
}

Status read_exactly(int fd, const std::string& path, uint64_t offset, uint64_t bytes, char* out) {
    while (bytes > 0) {
        const ssize_t got = ::pread(fd, out, bytes, static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            return error(Code::io_error, "{} cannot be read at offset {}: {}", path, offset, reason(errno));
        }
        if (got == 0) return error(Code::io_error, "{} became shorter while it was read", path);
        offset += static_cast<uint64_t>(got);
        bytes -= static_cast<uint64_t>(got);
        out += got;
    }
    return {};
}

struct LoadedFile {
    FileEntry entry;
    ParsedHeader header;
};

// Code not_found if and only if the file does not exist.
Result<LoadedFile> load_file(const std::string& path) {
    // O_NONBLOCK: opening a pipe must fail below rather than wait for a writer.
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.get() < 0) {
        if (errno == ENOENT || errno == ENOTDIR) return error(Code::not_found, "{} does not exist", path);
        return error(Code::io_error, "{} cannot be opened: {}", path, reason(errno));
    }
    struct stat info {};
    if (::fstat(file.get(), &info) != 0) {
        return error(Code::io_error, "{} cannot be examined: {}", path, reason(errno));
    }
    if (S_ISDIR(info.st_mode)) {
        return error(Code::invalid_argument, "{} is a directory, not a GGUF file", path);
    }
    if (!S_ISREG(info.st_mode)) {
        return error(Code::invalid_argument, "{} is not a regular file, so it is not a GGUF file", path);
    }
    const auto size = static_cast<uint64_t>(info.st_size);
    if (size == 0) return error(Code::corrupt, "{} is empty", path);

    LoadedFile loaded;
    loaded.entry.path = path;
    loaded.entry.size = size;
    loaded.entry.device = info.st_dev;
    loaded.entry.inode = info.st_ino;
    std::string head;
    // Read-ahead would bring in megabytes of payload behind the header.
    (void)posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);
    for (uint64_t want = std::min(size, kFirstPrefix);; want = std::min({size, 2 * want, kMaxHeaderBytes})) {
        const uint64_t have = head.size();
        head.resize(want);
        if (Status read = read_exactly(file.get(), path, have, want - have, head.data() + have); !read) return read;
        // The two ways to pick the wrong file that are met most deserve a sentence of their own.
        if (head.starts_with("version https://git-lfs")) {
            return error(Code::invalid_argument,
                         "{} is not a GGUF file: it is a Git LFS pointer, the model itself was not downloaded", path);
        }
        const std::string_view start = std::string_view(head).substr(0, 4);
        if (start != std::string_view("GGUF").substr(0, start.size())) {
            return error(Code::invalid_argument, "{} is not a GGUF file: it begins with {} instead of 'GGUF'", path,
                         quoted(start));
        }
        Result<ParseOutcome> parsed = parse_gguf_header(head);
        if (!parsed) return parsed.status().within(path);
        if (!parsed->needs_more) {
            loaded.header = std::move(parsed->header);
            break;
        }
        if (want == size) {
            return error(Code::corrupt, "{} is truncated: its {} bytes end within its header", path, size);
        }
        if (want == kMaxHeaderBytes) {
            return error(Code::unsupported, "{}: its header is longer than {}", path, human_bytes(kMaxHeaderBytes));
        }
    }
    loaded.entry.data_offset = loaded.header.data_offset;
    return loaded;
}

std::optional<uint64_t> as_unsigned(const MetaValue& value) {
    if (const auto* u = std::get_if<uint64_t>(&value)) return *u;
    if (const auto* s = std::get_if<int64_t>(&value)) {
        return *s < 0 ? std::nullopt : std::optional<uint64_t>(static_cast<uint64_t>(*s));
    }
    return std::nullopt;
}

std::optional<uint64_t> meta_number(const ParsedHeader& header, std::string_view key) {
    const auto found = header.meta.find(key);
    return found == header.meta.end() ? std::nullopt : as_unsigned(found->second);
}

std::string meta_string(const ParsedHeader& header, std::string_view key) {
    const auto found = header.meta.find(key);
    if (found == header.meta.end()) return "";
    const auto* text = std::get_if<std::string>(&found->second);
    return text == nullptr ? "" : *text;
}

// A shard's place, as its file name states it.
struct ShardName {
    std::string prefix;   // path up to and without "-00001-of-00005.gguf"
    uint32_t number = 0;  // counted from 1
    uint32_t count = 0;
};

std::optional<uint32_t> five_digits(std::string_view text) {
    if (text.size() != 5) return std::nullopt;
    uint32_t value = 0;
    for (const char c : text) {
        if (c < '0' || c > '9') return std::nullopt;
        value = 10 * value + static_cast<uint32_t>(c - '0');
    }
    return value;
}

std::optional<ShardName> parse_shard_name(const std::string& path) {
    constexpr std::string_view kPattern = "-00001-of-00005.gguf";
    if (path.size() < kPattern.size()) return std::nullopt;
    const std::string_view tail = std::string_view(path).substr(path.size() - kPattern.size());
    const std::optional<uint32_t> number = five_digits(tail.substr(1, 5));
    const std::optional<uint32_t> count = five_digits(tail.substr(10, 5));
    if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf" || !number || !count ||
        *number == 0 || *number > *count) {
        return std::nullopt;
    }
    return ShardName{path.substr(0, path.size() - kPattern.size()), *number, *count};
}

std::string shard_path(const ShardName& name, uint32_t number) {
    return fmt::format("{}-{:05}-of-{:05}.gguf", name.prefix, number, name.count);
}

// Does this file's metadata say what its name says?
Status check_shard(const LoadedFile& shard, uint32_t number, uint32_t count) {
    const std::string& path = shard.entry.path;
    const std::optional<uint64_t> said_count = meta_number(shard.header, "split.count");
    const std::optional<uint64_t> said_no = meta_number(shard.header, "split.no");
    if (!said_count || !said_no) {
        return error(Code::corrupt,
                     "{} is named like shard {} of {}, but its metadata do not say that it is a shard at all", path,
                     number, count);
    }
    if (*said_count != count) {
        return error(Code::corrupt, "{} is named like shard {} of {}, but its metadata say that its set has {} shards",
                     path, number, count, *said_count);
    }
    // split.no counts from 0. Compared without adding, since it may be anything.
    if (*said_no != number - 1) {
        return error(Code::corrupt,
                     "{} is named like shard {} of {}, but its metadata give its place, counted from 0, as {}: it was "
                     "renamed or overwritten",
                     path, number, count, *said_no);
    }
    if (!meta_number(shard.header, "split.tensors.count")) {
        return error(Code::corrupt, "{} is a shard without the metadata key split.tensors.count", path);
    }
    return {};
}

// Does this shard belong to the same set as the one that the user named?
Status check_same_set(const LoadedFile& shard, const LoadedFile& reference) {
    const uint64_t total = *meta_number(shard.header, "split.tensors.count");
    const uint64_t reference_total = *meta_number(reference.header, "split.tensors.count");
    if (total != reference_total) {
        return error(Code::corrupt, "{} belongs to another set than {}: its set has {} tensors, not {}",
                     shard.entry.path, reference.entry.path, total, reference_total);
    }
    for (const char* key : {"general.architecture", "general.name"}) {
        // Usually only the first shard has these.
        const std::string here = meta_string(shard.header, key);
        const std::string there = meta_string(reference.header, key);
        if (!here.empty() && !there.empty() && here != there) {
            return error(Code::corrupt, "{} belongs to another set than {}: its {} is {}, not {}", shard.entry.path,
                         reference.entry.path, key, quoted(here), quoted(there));
        }
    }
    return {};
}

Result<GgufIndex> open_set(const ShardName& name, LoadedFile given) {
    if (Status checked = check_shard(given, name.number, name.count); !checked) return checked;
    const uint64_t total = *meta_number(given.header, "split.tensors.count");

    std::vector<LoadedFile> shards;
    std::map<std::pair<uint64_t, uint64_t>, size_t> by_identity;  // (device, inode) -> index into shards
    uint64_t n_tensors = 0;
    for (uint32_t number = 1; number <= name.count; number++) {
        if (number == name.number) {
            // Copied, for the later ones are still compared with it.
            shards.push_back(given);
        } else {
            const std::string path = shard_path(name, number);
            Result<LoadedFile> loaded = load_file(path);
            if (!loaded && loaded.status().code() == Code::not_found) {
                return error(Code::not_found, "shard {} of {} is missing: {} does not exist", number, name.count, path);
            }
            if (!loaded) return loaded.status();
            shards.push_back(std::move(loaded).value());
        }
        const LoadedFile& shard = shards.back();
        const auto [seen, is_new] =
            by_identity.emplace(std::pair(shard.entry.device, shard.entry.inode), shards.size() - 1);
        if (!is_new) {
            return error(Code::corrupt, "{} and {} are one and the same file", shards[seen->second].entry.path,
                         shard.entry.path);
        }
        if (Status checked = check_shard(shard, number, name.count); !checked) return checked;
        if (Status checked = check_same_set(shard, given); !checked) return checked;
        n_tensors += shard.header.tensors.size();
        if (n_tensors > kMaxTensors) {
            return error(Code::corrupt, "the set of {} has more than {} tensors", given.entry.path, kMaxTensors);
        }
    }

    std::vector<FileEntry> files;
    std::vector<ParsedHeader> headers;
    for (LoadedFile& shard : shards) {
        files.push_back(std::move(shard.entry));
        headers.push_back(std::move(shard.header));
    }
    Result<GgufIndex> index = GgufIndex::assemble(std::move(files), std::move(headers));
    if (index && n_tensors != total) {
        return error(Code::corrupt,
                     "the {} shards of {} hold {} tensors together, but their metadata promise {}: a shard was "
                     "replaced by one of another set",
                     name.count, given.entry.path, n_tensors, total);
    }
    return index;
}

// The tensors of one file against its size and each other. `tensors` are those of this file only.
Status check_layout(const FileEntry& file, const std::vector<TensorEntry>& tensors) {
    std::vector<size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return std::pair(tensors[a].offset, tensors[a].bytes) < std::pair(tensors[b].offset, tensors[b].bytes);
    });

    uint64_t needed = 0;
    const TensorEntry* first_outside = nullptr;
    for (const size_t i : order) {
        const uint64_t end = tensors[i].offset + tensors[i].bytes;
        needed = std::max(needed, end);
        if (end > file.size && first_outside == nullptr) first_outside = &tensors[i];
    }
    if (first_outside != nullptr) {
        return error(Code::corrupt,
                     "{} is truncated: it has {} bytes but needs {}; the first tensor that does not fit is {}",
                     file.path, file.size, needed, quoted(first_outside->name));
    }
    // Empty tensors come before others at the same offset, so the last one seen is the one that ends last.
    const TensorEntry* previous = nullptr;
    for (const size_t i : order) {
        const TensorEntry& tensor = tensors[i];
        if (previous != nullptr && tensor.offset < previous->offset + previous->bytes) {
            return error(Code::corrupt, "{}: tensors {} and {} overlap", file.path, quoted(previous->name),
                         quoted(tensor.name));
        }
        previous = &tensor;
    }
    return {};
}

}  // namespace

Result<GgufIndex> GgufIndex::open(const std::string& path) {
    try {
        if (path.empty()) return Status(Code::invalid_argument, "no model file was named");
        Result<LoadedFile> loaded = load_file(path);
        if (!loaded) return loaded.status();
        LoadedFile given = std::move(loaded).value();

        const std::optional<ShardName> name = parse_shard_name(path);
        const uint64_t said_count = meta_number(given.header, "split.count").value_or(0);
        // "-00001-of-00001" is a usual name for a file that was never split.
        if (name && (name->count > 1 || said_count > 1)) return open_set(*name, std::move(given));
        if (said_count > 1) {
            return error(Code::invalid_argument,
                         "{} is one of {} shards and must keep its original name (NAME-00001-of-{:05}.gguf), or the "
                         "others cannot be found",
                         path, said_count, said_count);
        }
        std::vector<FileEntry> files{std::move(given.entry)};
        std::vector<ParsedHeader> headers;
        headers.push_back(std::move(given.header));
        return assemble(std::move(files), std::move(headers));
    } catch (const std::bad_alloc&) {
        return error(Code::no_memory, "{}: not enough memory for its header", path);
    } catch (const std::exception& e) {
        return error(Code::internal, "{}: {}", path, e.what());
    }
}

Result<GgufIndex> GgufIndex::assemble(std::vector<FileEntry> files, std::vector<ParsedHeader> headers) {
    assert(!files.empty() && files.size() == headers.size());
    try {
        GgufIndex index;
        index.files_ = std::move(files);
        index.meta_ = std::move(headers.front().meta);
        uint64_t total = 0;
        for (size_t f = 0; f < headers.size(); f++) {
            if (Status checked = check_layout(index.files_[f], headers[f].tensors); !checked) return checked;
            for (TensorEntry& tensor : headers[f].tensors) {
                tensor.file = static_cast<uint32_t>(f);
                const auto [seen, is_new] = index.by_name_.emplace(tensor.name, index.tensors_.size());
                if (!is_new) {
                    const std::string& first = index.files_[index.tensors_[seen->second].file].path;
                    if (first == index.files_[f].path) {
                        return error(Code::corrupt, "{}: tensor {} occurs twice", first, quoted(tensor.name));
                    }
                    return error(Code::corrupt, "tensor {} occurs in both {} and {}", quoted(tensor.name), first,
                                 index.files_[f].path);
                }
                // One file's bytes always fit. Those of many (sparse) files might not, and sums over all tensors are
                // taken without looking.
                const std::optional<uint64_t> sum = checked_add(total, tensor.bytes);
                if (!sum || *sum > uint64_t{INT64_MAX}) {
                    return error(Code::unsupported, "the tensors of {} are too large together", index.files_[0].path);
                }
                total = *sum;
                index.tensors_.push_back(std::move(tensor));
            }
        }
        return index;
    } catch (const std::bad_alloc&) {
        return Status(Code::no_memory, "not enough memory for the tensor index");
    } catch (const std::exception& e) {
        return error(Code::internal, "building the tensor index failed: {}", e.what());
    }
}

const TensorEntry* GgufIndex::find(std::string_view tensor_name) const {
    const auto found = by_name_.find(tensor_name);
    return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::string GgufIndex::architecture() const {
    const MetaValue* value = meta("general.architecture");
    const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
    return text == nullptr ? "" : *text;
}

const MetaValue* GgufIndex::meta(std::string_view key) const {
    const auto found = meta_.find(key);
    return found == meta_.end() ? nullptr : &found->second;
}

std::optional<uint64_t> GgufIndex::arch_number(std::string_view key) const {
    const MetaValue* value = meta(architecture() + "." + std::string(key));
    if (value == nullptr) return std::nullopt;
    if (const auto* numbers = std::get_if<std::vector<int64_t>>(value)) {
        const auto largest = std::max_element(numbers->begin(), numbers->end());
        if (largest == numbers->end() || *largest < 0) return std::nullopt;
        return static_cast<uint64_t>(*largest);
    }
    return as_unsigned(*value);
}

uint64_t GgufIndex::header_bytes() const {
    uint64_t sum = 0;
    for (const FileEntry& file : files_) sum += file.data_offset;
    return sum;
}

}  // namespace sluice::model
