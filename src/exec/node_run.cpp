#include "exec/node_run.h"

#include <algorithm>
#include <span>
#include <utility>

#include "exec/waves.h"

namespace sluice::exec {

void NodeRun::ask(const WeightRef& weight, sched::Batch& batch) {
    const auto first = cache::component_bit(weight.component);
    parts_.clear();
    for (const RecordId r : block_.records) parts_.push_back({r, first});
    for (uint32_t c = 0; c < weight.runtime->store->n_components(weight.set); ++c) {
        const auto which = cache::component_bit(c);
        if (which == first) continue;
        for (const RecordId r : block_.records) parts_.push_back({r, which});
    }
    weight.runtime->fetcher->request(batch, parts_, &launch_.pass());
}

ggml_status NodeRun::run(ggml_tensor* node, const WeightRef& weight, sched::Batch& batch) {
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    trace::Pass* pass = &launch_.pass();
    const auto which = cache::component_bit(weight.component);
    // A copy: in whose order the leases end does not depend on what comes first.
    group_ = block_.records;
    std::span<RecordId> left(group_);
    while (!left.empty()) {
        fetcher.look(pass);
        const auto there =
            std::partition(left.begin(), left.end(), [&](RecordId r) { return fetcher.ready(r, which); });
        const auto n = static_cast<size_t>(there - left.begin());
        if (n < worth_a_launch(weight.runtime->wave, left.size())) {
            if (Status s = fetcher.wait_some(batch, pass, launch_.stop()); !s.ok()) return launch_.fail(std::move(s));
            continue;
        }
        const ggml_status status = products_.gather(node, weight, left.first(n));
        if (status != GGML_STATUS_SUCCESS) return status;
        left = left.subspan(n);
    }
    return GGML_STATUS_SUCCESS;
}

ggml_status NodeRun::run_in_waves(ggml_tensor* node, const WeightRef& weight, size_t leased) {
    ModelRuntime& runtime = *weight.runtime;
    sched::Fetcher& fetcher = *runtime.fetcher;
    trace::Pass* pass = &launch_.pass();
    const auto which = cache::component_bit(weight.component);
    const std::span<RecordId> records(block_.records);
    sched::Batch batch;
    // Records before `leased` are or were leased, those before `asked` asked for; `done` are computed, and before
    // `first` all are.
    size_t asked = 0, done = 0, first = 0;
    computed_.assign(records.size(), 0);
    const auto ask = [&] {
        parts_.clear();
        for (; asked < leased; ++asked) parts_.push_back({records[asked], which});
        if (!parts_.empty()) fetcher.request(batch, parts_, pass);
    };
    const auto give_up = [&](ggml_status status) {
        fetcher.give_up(batch);
        for (size_t i = first; i < leased; ++i) {
            if (computed_[i] == 0) fetcher.release({&records[i], 1});
        }
        return status;
    };
    const size_t room = leased;
    while (done < records.size()) {
        while (done == leased) {
            if (Status s = wait_for_slot(fetcher, launch_); !s.ok()) return give_up(launch_.fail(std::move(s)));
            leased += fetcher.lease(records.subspan(leased), seat_in(block_.mode));
        }
        ask();
        if (const ggml_status status = early_.compute(); status != GGML_STATUS_SUCCESS) return give_up(status);
        fetcher.look(pass);
        while (first < leased && computed_[first] != 0) ++first;
        group_.clear();
        for (size_t i = first; i < leased; ++i) {
            if (computed_[i] == 0 && fetcher.ready(records[i], which)) group_.push_back(records[i]);
        }
        const size_t open = leased - done;
        const size_t least = runtime.overlap ? worth_a_launch(runtime.wave, open) : open;
        if (group_.size() < least) {
            if (Status s = fetcher.wait_some(batch, pass, launch_.stop()); !s.ok())
                return give_up(launch_.fail(std::move(s)));
            continue;
        }
        // Half of them at a time: while these compute, the others are read.
        if (runtime.overlap && leased < records.size())
            group_.resize(std::min(group_.size(), std::max(least, (room + 1) / 2)));
        const ggml_status status = products_.gather(node, weight, group_);
        if (status != GGML_STATUS_SUCCESS) return give_up(status);
        for (size_t i = first, n = 0; n < group_.size(); ++i) {
            if (records[i] != group_[n]) continue;
            ++n;
            ++done;
            computed_[i] = 1;
            fetcher.release({&records[i], 1});
            leased += fetcher.lease(records.subspan(leased), seat_in(block_.mode));
        }
    }
    return GGML_STATUS_SUCCESS;
}

}  // namespace sluice::exec
