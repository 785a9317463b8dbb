// Owns: the fuzz target for what stands between a GGUF file's bytes and the rest of Sluice.
// Keeps: any input is either refused with a sentence or yields an index whose every promise holds; what does not hold
// stops the process, which is how the fuzzer (and the replay in the tests) notices.
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "model/geometry.h"
#include "model/gguf.h"

namespace {

void require(bool holds, const char* promise) {
    if (holds) return;
    std::fprintf(stderr, "broken promise: %s\n", promise);
    std::abort();
}

using namespace sluice::model;

void check_index(const GgufIndex& index, uint64_t size) {
    uint64_t sum = 0;
    for (const TensorEntry& tensor : index.tensors()) {
        require(tensor.offset <= size && tensor.bytes <= size - tensor.offset, "a tensor lies within its file");
        require(tensor.offset >= index.files()[0].data_offset, "a tensor lies behind the header");
        require(index.find(tensor.name) == &tensor, "a name leads to its tensor");
        sum += tensor.bytes;
    }
    require(sum <= size, "tensors share no byte");

    const sluice::Result<Geometry> geometry = derive_geometry(index);
    if (!geometry) {
        require(geometry.status().code() == sluice::Code::unsupported, "a geometry is refused as unsupported");
        return;
    }
    require(geometry->expert_bytes + geometry->dense_bytes == sum, "experts and the rest are everything");
    require(geometry->cycle_bytes <= geometry->expert_bytes, "a token uses no more than everything");
    for (const ExpertSet& set : geometry->sets) {
        require(set.n_expert > 0 && set.n_used <= set.n_expert, "a set has as many experts as are used");
        require(static_cast<uint32_t>(set.layer) < geometry->n_layer, "a set's layer exists");
        for (const ExpertTensor& tensor : set.tensors) {
            require(tensor.bytes_per_expert > 0, "an expert has bytes");
            require(tensor.expert_offset(set.n_expert) <= size, "the last expert lies within the file");
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    sluice::Result<ParseOutcome> outcome = parse_gguf_header(bytes);
    if (!outcome) {
        require(!outcome.status().message().empty(), "an error has a sentence");
        require(outcome.status().code() != sluice::Code::internal, "bad input is no fault of ours");
        return 0;
    }
    if (outcome->needs_more) return 0;
    FileEntry file;
    file.path = "input";
    file.size = size;
    file.data_offset = outcome->header.data_offset;
    std::vector<ParsedHeader> headers;
    headers.push_back(std::move(outcome->header));
    const sluice::Result<GgufIndex> index = GgufIndex::assemble({file}, std::move(headers));
    if (index) check_index(*index, size);
    return 0;
}
