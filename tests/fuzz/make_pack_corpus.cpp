// Owns: the seeds of the fuzz target for manifests of packs.
// Keeps: the same files on every run. Run by hand when the format grows; its output is committed.
#include <cstdio>
#include <fstream>
#include <map>
#include <string>

#include "store/pack.h"

namespace {

using namespace sluice;
using namespace sluice::store;

Source small_source() {
    Source s;
    s.digest = "0123456789abcdef";
    s.files = {{"m-00001-of-00002.gguf", 9000}, {"m-00002-of-00002.gguf", 5000}};
    model::ExpertSet a;
    a.layer = 1;
    a.group = "exps";
    a.n_expert = 2;
    for (const auto component : {model::Component::gate, model::Component::up, model::Component::down}) {
        model::ExpertTensor t;
        t.component = component;
        t.type = 2;  // Q4_0
        t.offset = 1000 + 1800 * static_cast<uint64_t>(component);
        t.bytes_per_expert = 900;
        a.tensors.push_back(t);
    }
    model::ExpertSet b;
    b.layer = 2;
    b.group = "chexps";
    b.n_expert = 1;
    model::ExpertTensor t;
    t.component = model::Component::gate_up;
    t.type = 8;  // Q8_0
    t.file = 1;
    t.offset = 32;
    t.bytes_per_expert = 34 * 130;
    b.tensors.push_back(t);
    s.sets = {a, b};
    return s;
}

std::string file_of(Manifest m) {
    const auto parts = Parts::of(m.source);
    m.sums.assign(parts->count(), 0);
    for (PartId p = 0; p < parts->first(m.done); ++p) m.sums[p] = static_cast<uint32_t>(p * 2654435761U + 1);
    m.modified.assign(m.source.files.size(), 1'700'000'000'000'000'000);
    m.generation = 4;
    const std::string even = encode_manifest(m);
    m.generation = 5;
    return even + encode_manifest(m);
}

std::map<std::string, std::string> seeds() {
    std::map<std::string, std::string> out;
    Manifest m;
    m.source = small_source();
    m.dense_digest = "fedcba9876543210";
    m.done = 3;
    out["whole"] = file_of(m);
    m.shape = {.layout = Layout::component, .split = 32'768, .keeps_dense = true};
    out["split-by-component"] = file_of(m);
    m.shape = {.layout = Layout::layer, .split = 0, .keeps_dense = false};
    m.reclaimed = true;
    m.done = 1;
    out["being-reclaimed"] = file_of(m);
    const std::string& whole = out["whole"];
    const size_t half = whole.size() / 2;
    out["one-slot"] = std::string(half, '\0') + whole.substr(half);
    out["torn-slot"] = whole.substr(0, 300) + std::string(half - 300, '\0') + whole.substr(half);
    out["cut"] = whole.substr(0, half + 100);
    out["empty"] = "";
    return out;
}

}  // namespace

// make_pack_corpus DIRECTORY
int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 1;
    }
    for (const auto& [name, bytes] : seeds()) {
        std::ofstream out(std::string(argv[1]) + "/" + name + ".manifest", std::ios::binary);
        out << bytes;
        if (!out.flush()) {
            std::fprintf(stderr, "cannot write %s\n", name.c_str());
            return 1;
        }
    }
    return 0;
}
