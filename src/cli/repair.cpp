// Owns: `sluice repair`: damaged parts of a model or of its pack from whoever still has them.
// Keeps: only bytes whose checksum is right are written.
#include <cstdio>

#include "cli/commands.h"
#include "cli/progress_bar.h"
#include "store/mend.h"

namespace sluice::cli {
namespace {

constexpr size_t kMostShown = 20;

struct Asked {
    std::string path, pack;
    store::RepairJob job;
};

Result<Asked> parse(std::vector<std::string> arguments) {
    Asked asked;
    for (size_t i = 0; i < arguments.size(); ++i) {
        std::string& a = arguments[i];
        if (a == "--yes") {
            asked.job.sure = true;
        } else if (a == "--from" || a == "--pack") {
            if (i + 1 == arguments.size()) return error(Code::invalid_argument, "{} needs a value", a);
            if (a == "--from") {
                asked.job.from.push_back(arguments[i + 1]);
            } else {
                asked.pack = arguments[i + 1];
            }
            ++i;
        } else if (!a.starts_with('-') && !a.empty() && asked.path.empty()) {
            asked.path = std::move(a);
        } else {
            return error(Code::invalid_argument, "do not understand \"{}\"; sluice repair --help", a);
        }
    }
    if (asked.path.empty()) return error(Code::invalid_argument, "which model? sluice repair MODEL");
    return asked;
}

}  // namespace

int repair_command(std::vector<std::string> arguments) {
    if (asks_help(arguments)) return print_help(help_text(*find_command("repair")));
    auto asked = parse(std::move(arguments));
    if (!asked.ok()) return fail(asked.status(), kUsage);
    auto bundle = store::find_bundle(asked->path, asked->pack, io::Access::direct);
    if (!bundle.ok()) {
        if (bundle.status().code() != Code::not_found) return fail(bundle.status(), kFailed);
        return fail(error(Code::not_found, "{}; without a pack or checksums nobody knows what is right",
                          bundle.status().message()),
                    kFailed);
    }
    const auto engine = io::make_engine({});
    if (!engine.ok()) return fail(engine.status(), kFailed);
    ProgressBar bar("looking");
    asked->job.progress = [&](uint64_t done, uint64_t total) {
        bar.show(done, total);
        return true;
    };
    const auto done = store::repair(store::Files::system(), std::move(*bundle), *engine->engine, asked->job);
    bar.clear();
    if (!done.ok()) return fail(done.status(), kFailed);
    for (const std::string& line : done->mended) std::printf("mended: %s\n", line.c_str());
    for (size_t i = 0; i < done->lost.size() && i < kMostShown; ++i) std::printf("lost: %s\n", done->lost[i].c_str());
    if (done->lost.size() > kMostShown) std::printf("... and %zu more\n", done->lost.size() - kMostShown);
    for (const std::string& line : done->missing) std::printf("%s\n", line.c_str());
    std::printf("%s: %llu parts looked at, %zu mended, %llu lost\n", asked->path.c_str(),
                static_cast<unsigned long long>(done->looked_at), done->mended.size(),
                static_cast<unsigned long long>(done->lost_parts));
    return done->lost.empty() && done->missing.empty() ? kOk : kFailed;
}

}  // namespace sluice::cli
