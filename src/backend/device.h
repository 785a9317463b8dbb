// Owns: Sluice as ggml sees it: registry, device, buffer type, backend.
// Keeps: one registry per process; the configuration is fixed once the first model is loaded.
#pragma once

#include <ggml-backend.h>

#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "route/scores.h"
#include "sluice/sluice.h"

namespace sluice::backend {

class ModelState;

// Checks that this is the ggml that Sluice was built for and installs the hooks. Returns the registry; the same one
// every time.
Result<ggml_backend_reg_t> make_registry();

void set_config(const Config& config);
// A configuration that could not be read: every model load fails with this, since a plug-in cannot stop its host.
void set_config_error(Status status);

bool models_are_loaded();
// The model that is loaded, for who has it run in several ways (ModelState::make_way); nullptr unless it is one. Let go
// of it before llama.cpp frees the model.
std::shared_ptr<ModelState> loaded_model();

// Whether the model in `path` could be loaded with `config`, as far as headers tell: what its loading would refuse,
// found out without loading it. After start().
Status check_model(const std::string& path, const Config& config);

// The record is about to end: a graph that is over, but whose results nobody has asked for, becomes a row now. For the
// thread that ends the process, or that runs the contexts.
void finish_rows();
// And what models that are still loaded have guessed goes into it.
void record_guesses();

// What requests hold of all models that are loaded. Between two requests leases belong to reads that were given up and
// have not come yet: never more leases than reads.
struct InFlight {
    uint64_t leases = 0, reads = 0;
};
InFlight in_flight();
// The same after waiting until nothing is on its way any more.
InFlight settle();

// What a model that guesses (--predict-log) has found so far; of several loaded ones, of the first. Nothing if none
// does.
struct Predictions {
    route::Scores scores;
    std::vector<int> layers;  // of each set
    double read = 0;          // of one expert, on average, in nanoseconds; 0: not known
    Nanos busy = 0;           // of the drive, since the model was loaded
};
std::optional<Predictions> predictions();

// The program is about to end: every graph that is being computed fails within one layer, and so do those that come;
// and models are freed without waiting for their reads. May be called by any thread.
void stop_all();

Stats collect_stats();
void reset_counters();
std::string last_compute_error();

}  // namespace sluice::backend
