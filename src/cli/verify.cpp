// Owns: `sluice verify`: are the bytes of the experts still what they were?
// Keeps: without --write nothing is written.
#include <cstdio>
#include <filesystem>

#include "base/bytes.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/progress_bar.h"
#include "store/bundle.h"
#include "store/scan.h"
#include "store/sums.h"

namespace sluice::cli {
namespace {

constexpr size_t kMostShown = 20;

struct Asked {
    std::string path, pack;
    std::vector<std::string> mirrors;
    store::Depth depth = store::Depth::full;
    bool write = false;
};

Result<Asked> parse(std::vector<std::string> arguments) {
    Asked asked;
    bool depth_given = false;
    for (size_t i = 0; i < arguments.size(); ++i) {
        std::string& a = arguments[i];
        if (a == "--pack" || a == "--mirror") {
            if (i + 1 == arguments.size()) return error(Code::invalid_argument, "{} needs a value", a);
            if (a == "--pack") {
                asked.pack = arguments[++i];
            } else {
                asked.mirrors.push_back(arguments[++i]);
            }
        } else if (a == "--quick" || a == "--full") {
            const store::Depth depth = a == "--quick" ? store::Depth::quick : store::Depth::full;
            if (depth_given && depth != asked.depth)
                return error(Code::invalid_argument, "--quick and --full are opposites: take one of them");
            asked.depth = depth;
            depth_given = true;
        } else if (a == "--write") {
            asked.write = true;
        } else if (!a.starts_with('-') && !a.empty() && asked.path.empty()) {
            asked.path = std::move(a);
        } else {
            return error(Code::invalid_argument, "do not understand \"{}\"; sluice verify --help", a);
        }
    }
    if (asked.path.empty()) return error(Code::invalid_argument, "which model? sluice verify MODEL");
    if (asked.write && (!asked.pack.empty() || !asked.mirrors.empty()))
        return error(Code::invalid_argument,
                     "--write is about the model's own files; it goes without --pack and "
                     "--mirror");
    if (asked.write && depth_given)
        return error(Code::invalid_argument, "--write reads everything; it goes without --quick and --full");
    return asked;
}

int say(const store::Verdict& verdict, const std::string& path) {
    for (size_t i = 0; i < verdict.damage.size() && i < kMostShown; ++i)
        std::printf("damaged: %s\n", verdict.damage[i].what.c_str());
    if (verdict.damage.size() > kMostShown) std::printf("... and %zu more\n", verdict.damage.size() - kMostShown);
    std::printf("%s: %llu matrices of experts looked at (%s), %zu damaged\n", path.c_str(),
                static_cast<unsigned long long>(verdict.components), human_bytes(verdict.bytes).c_str(),
                verdict.damage.size());
    return verdict.damage.empty() ? kOk : kFailed;
}

// The model, its pack and other copies, against the pack's checksums (or those beside the model).
int verify_bundle(const Asked& asked, const store::Bundle& bundle, io::Engine& engine) {
    if (!bundle.note.empty()) std::printf("damaged: %s\n", bundle.note.c_str());
    bool good = bundle.note.empty();
    std::vector<store::Copy> others;
    for (const std::string& path : asked.mirrors) {
        auto copy = store::open_other(bundle, path, io::Access::direct);
        if (!copy.ok()) return fail(copy.status(), kFailed);
        others.push_back(std::move(*copy));
    }
    std::vector<const store::Copy*> copies;
    if (!bundle.own.missing()) copies.push_back(&bundle.own);
    if (bundle.packed) copies.push_back(&*bundle.packed);
    for (const store::Copy& c : others) copies.push_back(&c);
    for (const store::Copy* copy : copies) {
        ProgressBar bar("verifying");
        const auto verdict =
            store::verify_copy(*bundle.reference, *copy, engine, asked.depth, [&](uint64_t done, uint64_t total) {
                bar.show(done, total);
                return true;
            });
        bar.clear();
        if (!verdict.ok()) return fail(verdict.status(), kFailed);
        size_t damaged = verdict->damage.size();
        for (const std::string& trouble : store::trouble_of(bundle, *copy)) {
            std::printf("damaged: %s\n", trouble.c_str());
            ++damaged;
        }
        for (size_t i = 0; i < verdict->damage.size() && i < kMostShown; ++i)
            std::printf("damaged: %s\n", verdict->damage[i].what.c_str());
        if (verdict->damage.size() > kMostShown) std::printf("... and %zu more\n", verdict->damage.size() - kMostShown);
        std::printf("%s: %llu parts looked at (%s), %zu damaged%s\n", copy->name.c_str(),
                    static_cast<unsigned long long>(verdict->parts), human_bytes(verdict->bytes).c_str(), damaged,
                    !copy->skeleton     ? ""
                    : bundle.complete() ? "; its experts are in the pack only"
                                        : "; some of its experts are in the pack only");
        good = good && damaged == 0;
    }
    if (!bundle.complete()) {
        std::printf("%s is not complete: %u of %u steps are done\nnext: %s goes on with it\n", bundle.pack.c_str(),
                    bundle.reference->done, bundle.reference->parts.n_steps(), store::finishing(bundle).c_str());
        return kFailed;
    }
    if (const Status gone = store::missing_model(bundle); !gone.ok()) {
        std::printf("%s\n", gone.message().c_str());
        if (good) return kFailed;
    }
    if (!good) std::printf("next: sluice repair %s\n", asked.path.c_str());
    return good ? kOk : kFailed;
}

int verify_model(const Asked& asked, io::Engine& engine) {
    if (!asked.write) {
        const auto bundle = store::find_bundle(asked.path, asked.pack, io::Access::direct);
        if (bundle.ok() && (!bundle->pack.empty() || !asked.mirrors.empty()))
            return verify_bundle(asked, *bundle, engine);
        // Without a pack, the model itself says below what is wrong.
        if (!bundle.ok() &&
            (store::looks_like_manifest(asked.path) || std::filesystem::exists(asked.path + ".sluice") ||
             !asked.pack.empty() || !asked.mirrors.empty()))
            return fail(bundle.status(), kFailed);
    }
    const auto index = model::GgufIndex::open(asked.path);
    if (!index.ok()) return fail(index.status(), kFailed);
    const auto geometry = model::derive_geometry(*index);
    if (!geometry.ok()) return fail(geometry.status(), kFailed);
    // What is wrong with the checksums is said here, as an error.
    set_log_level(LogLevel::error);
    const auto store = store::RecordStore::open(*index, *geometry, {.store = "gguf"}, nullptr);
    if (!store.ok()) return fail(store.status(), kFailed);
    ProgressBar bar(asked.write ? "reading" : "verifying");
    const auto progress = [&](uint64_t done, uint64_t total) {
        bar.show(done, total);
        return true;
    };
    if (asked.write) {
        // Known before all is read.
        if (Status s = store::check_replaceable(store::Files::system(), store::sums_path(*index)); !s.ok())
            return fail(s, kFailed);
        auto source = store::describe(*index, *geometry);
        if (!source.ok()) return fail(source.status(), kFailed);
        auto sums = store::compute_sums(*store, engine, progress);
        bar.clear();
        if (!sums.ok()) return fail(sums.status(), kFailed);
        const size_t n = sums->size();
        if (Status s = store::save_sums(store::Files::system(), *index, {std::move(*source), std::move(*sums)});
            !s.ok())
            return fail(s, kFailed);
        std::printf("%s: %zu checksums written\n", store::sums_path(*index).c_str(), n);
        return kOk;
    }
    if (!store->has_checksums()) {
        const Status why = store::load_sums(*index, *geometry).status();
        if (why.code() != Code::not_found) return fail(why, kFailed);
        return fail(error(Code::not_found, "{} has no checksums yet: sluice verify --write {} makes them", asked.path,
                          asked.path),
                    kFailed);
    }
    const auto verdict = store::verify(*store, engine, asked.depth, progress);
    bar.clear();
    if (!verdict.ok()) return fail(verdict.status(), kFailed);
    return say(*verdict, asked.path);
}

}  // namespace

int verify_command(std::vector<std::string> arguments) {
    if (asks_help(arguments)) return print_help(help_text(*find_command("verify")));
    const auto asked = parse(std::move(arguments));
    if (!asked.ok()) return fail(asked.status(), kUsage);
    const auto engine = io::make_engine({});
    if (!engine.ok()) return fail(engine.status(), kFailed);
    return verify_model(*asked, *engine->engine);
}

}  // namespace sluice::cli
