// Owns: the command line of the generator: sluice-make-model.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "make_model.h"

using sluice::Result;
using sluice::Status;
using sluice::fixture::ModelSpec;
using sluice::fixture::WeightType;

namespace {

int fail(const Status& status) {
    fmt::print(stderr, "sluice-make-model: {}\n", status.message());
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Makes a small random mixture-of-experts model as a GGUF file");
    // Options only change what the architecture's or the preset's defaults say when they are given.
    ModelSpec given;
    std::string arch = "qwen3moe";
    std::string preset;
    std::string type;
    std::string output;
    bool list = false;
    bool separate = false;
    app.add_flag("--list-archs", list, "Print the architectures, one per line");
    CLI::Option* arch_option = app.add_option("--arch", arch, "llama.cpp's name of the architecture");
    app.add_option("--preset", preset, "mid: qwen3moe with 16 layers of 64 experts, 1.8 GB in Q8_0")
        ->check(CLI::IsMember({"mid"}))
        ->excludes(arch_option);
    CLI::Option* layers = app.add_option("--layers", given.n_layer, "Layers, dense ones included");
    CLI::Option* experts = app.add_option("--experts", given.n_expert, "Experts per layer");
    CLI::Option* top_k = app.add_option("--top-k", given.n_expert_used, "Experts used per token");
    CLI::Option* groups = app.add_option("--groups", given.n_group, "Expert groups, 0 for none");
    CLI::Option* groups_used = app.add_option("--groups-used", given.n_group_used, "Groups a token may use");
    CLI::Option* dense = app.add_option("--dense-layers", given.n_dense_lead, "Leading dense layers");
    CLI::Option* embd = app.add_option("--embd", given.n_embd, "Width of the embedding");
    CLI::Option* ff = app.add_option("--ff", given.n_ff, "Width of one routed expert");
    CLI::Option* ff_dense = app.add_option("--ff-dense", given.n_ff_dense, "Width of dense layers");
    CLI::Option* ff_shared = app.add_option("--ff-shared", given.n_ff_shared, "Width of the shared expert");
    CLI::Option* head = app.add_option("--head-dim", given.head_dim, "Width of an attention head");
    CLI::Option* vocab = app.add_option("--vocab", given.n_vocab, "Tokens in the vocabulary");
    CLI::Option* ple = app.add_option("--embd-per-layer", given.n_embd_per_layer, "gemma4: width of its PLE");
    CLI::Option* alignment = app.add_option("--alignment", given.alignment, "Alignment of tensor data");
    CLI::Option* seed = app.add_option("--seed", given.seed, "Seed of all weights");
    CLI::Option* type_option = app.add_option("--type", type, "f32, f16, q8_0, q4_0, q4_k, q6_k or mxfp4");
    app.add_flag("--tied", given.tied_output, "No output matrix");
    CLI::Option* fused = app.add_flag("--fused", given.fused_gate_up, "gate and up in one tensor");
    app.add_flag("--separate", separate, "gate and up in two tensors")->excludes(fused);
    app.add_flag("--mixed-types", given.mixed_types, "Another type per layer and component of the experts");
    app.add_option("-o,--output", output, "The file to write");
    CLI11_PARSE(app, argc, argv);

    if (list) {
        for (const std::string& name : sluice::fixture::known_archs()) fmt::print("{}\n", name);
        return 0;
    }
    if (output.empty()) return fail(sluice::error(sluice::Code::invalid_argument, "--output FILE is missing"));

    ModelSpec spec;
    if (preset == "mid") {
        spec = sluice::fixture::mid_spec();
    } else {
        Result<ModelSpec> defaults = sluice::fixture::default_spec(arch);
        if (!defaults) return fail(defaults.status());
        spec = *defaults;
    }
    const auto take = [](const CLI::Option* option, auto& to, const auto& from) {
        if (option->count() > 0) to = from;
    };
    take(layers, spec.n_layer, given.n_layer);
    take(experts, spec.n_expert, given.n_expert);
    take(top_k, spec.n_expert_used, given.n_expert_used);
    take(groups, spec.n_group, given.n_group);
    take(groups_used, spec.n_group_used, given.n_group_used);
    take(dense, spec.n_dense_lead, given.n_dense_lead);
    take(embd, spec.n_embd, given.n_embd);
    take(ff, spec.n_ff, given.n_ff);
    take(ff_dense, spec.n_ff_dense, given.n_ff_dense);
    take(ff_shared, spec.n_ff_shared, given.n_ff_shared);
    take(head, spec.head_dim, given.head_dim);
    take(vocab, spec.n_vocab, given.n_vocab);
    take(ple, spec.n_embd_per_layer, given.n_embd_per_layer);
    take(alignment, spec.alignment, given.alignment);
    take(seed, spec.seed, given.seed);
    spec.tied_output = given.tied_output;
    spec.mixed_types = given.mixed_types;
    if (given.fused_gate_up || separate) spec.fused_gate_up = given.fused_gate_up;
    if (type_option->count() > 0) {
        Result<WeightType> parsed = sluice::fixture::parse_weight_type(type);
        if (!parsed) return fail(parsed.status());
        spec.type = *parsed;
    }
    if (Status status = sluice::fixture::write_model(spec, output); !status) return fail(status);
    return 0;
}
