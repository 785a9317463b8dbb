// Owns: the times of the pieces, for people. No test looks at them.
#include <benchmark/benchmark.h>

#include "bench/micro/piece.h"

namespace {

// The simulated device remembers every read, so state is made anew now and then.
constexpr int kRunsPerState = 256;

void measure(benchmark::State& state, const sluice::micro::Piece& piece) {
    sluice::micro::Run run;
    int left = 0;
    for (auto _ : state) {
        if (left-- == 0) {
            state.PauseTiming();
            run = piece.prepare();
            run();
            left = kRunsPerState - 1;
            state.ResumeTiming();
        }
        run();
    }
    using benchmark::Counter;
    const auto operations = static_cast<double>(state.iterations()) * static_cast<double>(piece.operations);
    state.counters["per_operation"] = Counter(operations, Counter::kIsRate | Counter::kInvert);
    state.SetLabel(std::string("operation: ") + piece.operation);
}

}  // namespace

int main(int argc, char** argv) {
    for (const sluice::micro::Piece& piece : sluice::micro::pieces()) {
        benchmark::RegisterBenchmark(piece.name, [&piece](benchmark::State& state) { measure(state, piece); });
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
