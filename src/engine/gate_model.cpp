#include "engine/gate_model.h"

#include <utility>

#include "model/digest.h"
#include "model/gguf.h"

namespace sluice::engine {

Result<GateModel> open_gate_model(const std::string& path, const WorkloadShape& shape, std::string gate,
                                  std::string question) {
    const auto index = model::GgufIndex::open(path);
    if (!index.ok()) return index.status();
    auto geometry = model::derive_geometry(*index);
    if (!geometry.ok()) return geometry.status();
    const auto digest = model::sampled_digest(*index);
    if (!digest.ok()) return digest.status();

    GateModel out{.geometry = std::move(*geometry), .verdict = {}};
    out.verdict.gate = std::move(gate);
    out.verdict.question = std::move(question);
    uint64_t bytes = 0;
    for (const auto& f : index->files()) bytes += f.size;
    out.verdict.inputs = {{"model", path, bytes, *digest}};
    out.verdict.settings = {{"prompt", std::to_string(shape.prompt)},
                            {"decode", std::to_string(shape.decode)},
                            {"threads", std::to_string(shape.threads)},
                            {"repack", shape.repack ? "yes" : "no"}};
    return out;
}

}  // namespace sluice::engine
