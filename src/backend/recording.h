// Owns: the one run record of this process: made from the configuration, fed by every context, ended with the process.
// Keeps: a file that cannot be opened is an error before anything is loaded; without an output there is no recorder and
// nothing is measured for one.
#pragma once

#include <memory>

#include "backend/options.h"
#include "base/status.h"
#include "exec/model_runtime.h"
#include "sluice/sluice.h"
#include "trace/recorder.h"

namespace sluice::backend {

class ModelState;

// Who runs the models. Set before start_recording(), by the program only.
struct Host {
    Place place = Place::library;
    std::string program;      // "sluice run"; empty: the process's name
    bool whole_loop = false;  // it times its whole loop and always wants a recorder
};
void set_host(Host host);
const Host& host();

// Opens the outputs that the configuration names. Called again with the same outputs it keeps them; with others the
// record so far is ended.
Status start_recording(const Config& config);
// Adds an output that is no file, if something is recorded. Before the first model is loaded.
void add_output(std::unique_ptr<trace::Sink> sink);
// Null when nothing is recorded.
trace::Recorder* recorder();
// The last line; files are whole afterwards. Also called at exit.
void end_recording(trace::Ending ending);

// The model's line in the record and its number, or -1.
int32_t record_model(const ModelState& model);
void record_cache(int32_t model, uint64_t bytes, uint64_t slots, uint64_t records, const std::string& why);

// A host that times its whole loop gives the pass that this thread's contexts count in, and commits it itself; nullptr
// ends that.
void use_pass(std::shared_ptr<trace::Pass> pass);
const std::shared_ptr<trace::Pass>& given_pass();

// The commit that this was built from; empty if that is not known.
const char* commit();

// State of every option, as the record's header has it.
trace::Json options_json(const Config& config);

}  // namespace sluice::backend
