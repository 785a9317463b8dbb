#include "io/engine.h"

#include <new>
#include <utility>

#include "io/mmap_engine.h"
#include "io/pool_engine.h"
#include "io/uring_engine.h"

namespace sluice::io {
namespace {

constexpr unsigned max_lanes = 64;

Result<MadeEngine> make(const EngineOptions& options, const UringCalls& calls) {
    if (options.lanes < 1 || options.lanes > max_lanes) {
        return error(Code::invalid_argument, "{} read lanes: between 1 and {} are possible", options.lanes, max_lanes);
    }
    if (options.kind == EngineKind::mmap) {
        Result<std::unique_ptr<Engine>> mapped = make_mmap_engine(options.lanes);
        if (!mapped) return mapped.status();
        return MadeEngine{std::move(mapped).value(), {}};
    }
    std::string note;
    if (options.kind != EngineKind::pread) {
        Result<std::unique_ptr<Engine>> ring = make_uring_engine(options.lanes, calls, options.priorities);
        if (ring) return MadeEngine{std::move(ring).value(), {}};
        if (options.kind == EngineKind::io_uring) return ring.status();
        note = ring.status().message() + "; reading with threads instead";
    }
    PoolOptions threads;  // clang 14 takes a designated initialiser for a call here
    threads.priorities = options.priorities;
    Result<std::unique_ptr<Engine>> pool = make_pool_engine(options.lanes, threads);
    if (!pool) return pool.status();
    return MadeEngine{std::move(pool).value(), std::move(note)};
}

}  // namespace

Result<MadeEngine> make_engine(const EngineOptions& options, const UringCalls& calls) {
    try {
        return make(options, calls);
    } catch (const std::bad_alloc&) {
        return error(Code::no_memory, "no memory for the tables of a read engine");
    }
}

Result<MadeEngine> make_engine(const EngineOptions& options) {
    return make_engine(options, UringCalls());
}

}  // namespace sluice::io
