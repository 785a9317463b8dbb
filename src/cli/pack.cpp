// Owns: `sluice pack`: a copy of a model's experts from which each is read in one aligned piece, and the room of the
// originals given back.
// Keeps: nothing is taken out of a model without being told to; what was begun can be gone on with.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/progress_bar.h"
#include "store/bundle.h"
#include "store/pack_build.h"

namespace sluice::cli {
namespace {

struct Asked {
    std::string path;
    store::PackJob job;
    bool yes = false;
};

Result<Asked> parse(std::vector<std::string> arguments) {
    Asked asked;
    for (size_t i = 0; i < arguments.size(); ++i) {
        std::string& a = arguments[i];
        if (a == "--reclaim" || a == "--yes") {
            (a == "--yes" ? asked.yes : asked.job.reclaim) = true;
            continue;
        }
        if (a == "--layout" || a == "--out" || a == "--split") {
            if (i + 1 == arguments.size()) return error(Code::invalid_argument, "{} needs a value", a);
            const std::string& value = arguments[++i];
            if (a == "--layout") {
                asked.job.layout = store::parse_layout(value);
                if (!asked.job.layout)
                    return error(Code::invalid_argument, "--layout: \"{}\" is neither layer nor component", value);
            } else if (a == "--split") {
                asked.job.split = parse_bytes(value, 1);
                if (!asked.job.split || *asked.job.split == 0)
                    return error(Code::invalid_argument, "--split: \"{}\" is not a size, as in 4G", value);
            } else {
                asked.job.out = value;
            }
            continue;
        }
        if (a.starts_with('-') || a.empty() || !asked.path.empty())
            return error(Code::invalid_argument, "do not understand \"{}\"; sluice pack --help", a);
        asked.path = std::move(a);
    }
    if (asked.path.empty()) return error(Code::invalid_argument, "which model? sluice pack MODEL");
    if (asked.yes && !asked.job.reclaim)
        return error(Code::invalid_argument, "--yes goes with --reclaim; nothing else needs it");
    return asked;
}

// Whether the model may be emptied.
Status confirm(const Asked& asked, const model::GgufIndex& index) {
    if (!asked.job.reclaim || asked.yes) return {};
    const std::string what = fmt::format(
        "--reclaim takes the experts out of {0} layer by layer, as the pack gets them. Afterwards only Sluice can run "
        "it, from both; other programs would load it and answer nonsense. {1} undoes it",
        asked.path, store::way_back(index, asked.job.out));
    if (isatty(STDIN_FILENO) != 1) return error(Code::invalid_argument, "{}. Say --yes if that is wanted", what);
    std::fprintf(stderr, "%s.\nType yes to go on: ", what.c_str());
    char answer[8] = {};
    if (std::fgets(answer, sizeof answer, stdin) == nullptr || std::strcmp(answer, "yes\n") != 0)
        return error(Code::cancelled, "nothing was changed");
    return {};
}

}  // namespace

int pack_command(std::vector<std::string> arguments) {
    if (asks_help(arguments)) return print_help(help_text(*find_command("pack")));
    const std::string again = command_line("pack", arguments);
    auto asked = parse(std::move(arguments));
    if (!asked.ok()) return fail(asked.status(), kUsage);
    const auto index = store::open_to_pack(asked->path);
    if (!index.ok()) return fail(index.status(), kFailed);
    const auto geometry = model::derive_geometry(*index);
    if (!geometry.ok()) return fail(geometry.status(), kFailed);
    if (Status s = confirm(*asked, *index); !s.ok()) return fail(s, kUsage);
    const auto engine = io::make_engine({});
    if (!engine.ok()) return fail(engine.status(), kFailed);
    ProgressBar bar("packing");
    catch_interrupts();
    asked->job.progress = [&](uint64_t done, uint64_t total) {
        bar.show(done, total);
        return !interrupted();
    };
    const auto done = store::make_pack(store::Files::system(), *index, *geometry, *engine->engine, asked->job);
    bar.clear();
    if (done.status().code() == Code::cancelled) {
        std::fprintf(stderr, "sluice: interrupted; the steps that are done are kept. next: %s goes on\n",
                     again.c_str());
        return kInterrupted;
    }
    if (!done.ok()) return fail(done.status(), done.status().code() == Code::invalid_argument ? kUsage : kFailed);
    const std::string model = index->files()[0].path;
    if (done->found == done->steps && done->given_back == 0) {
        std::printf("%s: there already, and complete\n", done->path.c_str());
        return kOk;
    }
    std::printf("%s: all experts of %s, %s in %u data file(s), layout %s\n", done->path.c_str(), model.c_str(),
                human_bytes(done->bytes).c_str(), done->files, store::layout_name(done->shape.layout));
    if (done->found > 0 && done->found < done->steps)
        std::printf("%u of %u steps were there from before\n", done->found, done->steps);
    if (asked->job.reclaim) {
        std::printf(
            "%s of %s were given back. It is a skeleton now: only Sluice can run it, together with the pack.\n"
            "next: run it as before%s; %s brings it back\n",
            human_bytes(done->given_back).c_str(), model.c_str(),
            asked->job.out.empty() ? "" : (" with --store " + done->path).c_str(),
            store::way_back(*index, done->path).c_str());
        return kOk;
    }
    std::printf("next: sluice verify %s reads it back and compares; sluice run -m %s%s reads experts from it\n",
                asked->job.out.empty() ? model.c_str() : done->path.c_str(), model.c_str(),
                asked->job.out.empty() ? "" : (" --store " + done->path).c_str());
    return kOk;
}

}  // namespace sluice::cli
