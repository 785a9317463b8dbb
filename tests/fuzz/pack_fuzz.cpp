// Owns: the fuzz target for the manifest of a pack.
// Keeps: any bytes are refused with a sentence or give a manifest from which every place follows and lies inside its
// file. A fuzzer does not find checksums, so each slot is tried with the right one as well.
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "base/crc32c.h"
#include "store/pack.h"

namespace {

using namespace sluice;
using namespace sluice::store;

void require(bool holds, const char* promise) {
    if (holds) return;
    std::fprintf(stderr, "broken promise: %s\n", promise);
    std::abort();
}

void check(const Status& s) {
    require(!s.message().empty(), "an error has a sentence");
    require(s.code() == Code::corrupt || s.code() == Code::unsupported, "bad bytes are no fault of ours");
}

void check(const Manifest& m) {
    const auto parts = Parts::of(m.source);
    require(parts.ok(), "a manifest's model has parts");
    const auto map = map_pack(*parts, m.shape);
    require(map.ok(), "and a place for each");
    require(m.sums.size() == parts->count() && m.done <= parts->n_steps(), "each has a checksum");
    require(m.generation > 0 && m.modified.size() == m.source.files.size(), "and files have their times");
    for (const CopyMap* copy : {&map->map, &parts->gguf()}) {
        for (PartId p = 0; p < parts->count() && p < 1000; ++p) {
            uint64_t bytes = 0;
            for (const Piece& piece : parts->pieces(*copy, p)) {
                require(piece.file < copy->file_bytes.size(), "a part is in a file");
                require(piece.offset <= copy->file_bytes[piece.file] &&
                            piece.bytes <= copy->file_bytes[piece.file] - piece.offset,
                        "and inside it");
                bytes += piece.bytes;
            }
            require(bytes == parts->bytes(p) || (bytes == 0 && !m.shape.keeps_dense), "with all of its bytes");
        }
    }
    require(parse_slot(encode_manifest(m), m.generation % 2).ok(), "what is written can be read");
}

void check(const Result<ReadManifest>& read) {
    if (read.ok()) {
        check(read->manifest);
    } else {
        check(read.status());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::string bytes(reinterpret_cast<const char*>(data), size);
    check(parse_manifest(bytes));
    const size_t half = bytes.size() / 2;
    if (half < kPackAlign) return 0;
    for (const size_t slot : {size_t{0}, half}) {
        const std::string_view covered = std::string_view(bytes).substr(slot, half - sizeof(uint32_t));
        const uint32_t sum = crc32c(std::as_bytes(std::span(covered.data(), covered.size())));
        bytes.replace(slot + covered.size(), sizeof sum, reinterpret_cast<const char*>(&sum), sizeof sum);
    }
    check(parse_manifest(bytes));
    return 0;
}
