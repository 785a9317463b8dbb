// Owns: `sluice unpack`: a model's own files, byte for byte, from its pack.
// Keeps: no file that is there is overwritten, but for the holes of a reclaimed model and only when asked to.
#include <cstdio>
#include <filesystem>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/progress_bar.h"
#include "store/mend.h"

namespace sluice::cli {
namespace {

struct Asked {
    std::string path, pack, out;
    bool in_place = false;
};

Result<Asked> parse(std::vector<std::string> arguments) {
    Asked asked;
    for (size_t i = 0; i < arguments.size(); ++i) {
        std::string& a = arguments[i];
        if (a == "--in-place") {
            asked.in_place = true;
        } else if (a == "--out" || a == "--pack") {
            if (i + 1 == arguments.size()) return error(Code::invalid_argument, "{} needs a value", a);
            (a == "--out" ? asked.out : asked.pack) = std::move(arguments[i + 1]);
            ++i;
        } else if (!a.starts_with('-') && !a.empty() && asked.path.empty()) {
            asked.path = std::move(a);
        } else {
            return error(Code::invalid_argument, "do not understand \"{}\"; sluice unpack --help", a);
        }
    }
    if (asked.path.empty()) return error(Code::invalid_argument, "which model? sluice unpack MODEL");
    if (asked.in_place && !asked.out.empty())
        return error(Code::invalid_argument, "--in-place and --out name different places");
    return asked;
}

}  // namespace

int unpack_command(std::vector<std::string> arguments) {
    if (asks_help(arguments)) return print_help(help_text(*find_command("unpack")));
    const std::string again = command_line("unpack", arguments);
    auto asked = parse(std::move(arguments));
    if (!asked.ok()) return fail(asked.status(), kUsage);
    auto bundle = store::find_packed(asked->path, asked->pack, io::Access::direct);
    if (!bundle.ok()) return fail(bundle.status(), kFailed);
    const auto engine = io::make_engine({});
    if (!engine.ok()) return fail(engine.status(), kFailed);
    ProgressBar bar("unpacking");
    catch_interrupts();
    const store::Progress progress = [&](uint64_t done, uint64_t total) {
        bar.show(done, total);
        return !interrupted();
    };
    if (asked->out.empty()) asked->out = std::filesystem::path(bundle->gguf).parent_path().string();
    const auto done = asked->in_place ? store::unpack_in_place(store::Files::system(), std::move(*bundle),
                                                               *engine->engine, io::Access::direct, progress)
                                      : store::unpack_into(store::Files::system(), *bundle, asked->out, *engine->engine,
                                                           io::Access::direct, progress);
    bar.clear();
    if (done.status().code() == Code::cancelled) {
        std::fprintf(stderr, "sluice: interrupted; %s. next: %s %s\n",
                     asked->in_place ? "what was filled in is kept" : "nothing was kept, and the pack is as it was",
                     again.c_str(), asked->in_place ? "goes on" : "begins anew");
        return kInterrupted;
    }
    if (!done.ok()) return fail(done.status(), kFailed);
    for (const std::string& path : done->paths) std::printf("%s: whole\n", path.c_str());
    std::printf("%s were written, and all of it was read back and compared\n", human_bytes(done->bytes).c_str());
    if (asked->in_place)
        std::printf("next: %s %s and its data files may be kept%s or removed\n",
                    done->complete ? "the pack" : "the unfinished pack", done->pack.c_str(),
                    done->complete ? "" : ", for sluice pack to go on with,");
    return kOk;
}

}  // namespace sluice::cli
