#include "exec/rank_run.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/log.h"
#include "exec/waves.h"

namespace sluice::exec {
namespace {

// Rows computed in one launch while reads are on their way, in bytes of their results: it is we who give the device
// more.
constexpr size_t kLaunchBytes = 2 * MiB;

}  // namespace

bool RankRun::find(ggml_cgraph* graph, int at, const WeightRef& weight, bool first) {
    ModelRuntime& runtime = *weight.runtime;
    const RankBlock& nodes = rows_.find(graph, at, weight_of_);
    const bool by_rank = !nodes.empty() && nodes.nodes.size() <= Launch::kMaxNodes &&
                         block_.n_rows() <= runtime.own_bytes / std::max<size_t>(1, nodes.row_bytes);
    const bool whole = nodes.all == (1U << runtime.store->n_components(weight.set)) - 1;
    if (first) ++(by_rank && whole ? runtime.blocks_by_rank : runtime.blocks_by_node);
    if (!whole && !runtime.told.pattern) tell_of_pattern(graph, weight);
    return by_rank;
}

// Says, once per model, which node keeps a block's products apart, if one does.
void RankRun::tell_of_pattern(ggml_cgraph* graph, const WeightRef& weight) const {
    const int unknown = rows_.nodes().unknown;
    if (unknown < 0) return;
    const ggml_tensor* node = ggml_graph_node(graph, unknown);
    for (int i = unknown; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor* other = ggml_graph_node(graph, i);
        const WeightRef* of = other->op == GGML_OP_MUL_MAT_ID ? weight_of_(other->src[0]) : nullptr;
        if (of == nullptr || of->runtime != weight.runtime || of->set != weight.set) continue;
        weight.runtime->told.pattern = true;
        log(LogLevel::debug,
            "layer {}: Sluice does not know what node {} ({}) does between products with experts. Such layers are "
            "computed product by product, and not each expert as it comes",
            weight.runtime->store->geometry().sets[weight.set].layer, node->name, ggml_op_name(node->op));
        return;
    }
}

void RankRun::ask(const WeightRef& weight, sched::Batch& batch) {
    const size_t rows = rows_.begin(weight);
    stage_.assign(rows, first_stage());
    group_.clear();
    for (size_t i = 0; i < rows; i = rows_.end_of_expert(i)) group_.push_back(rows_.record(i));
    // Those of products that the pattern does not reach, too: they come next.
    request(*weight.runtime->fetcher, batch, group_, UINT8_MAX);
}

ggml_status RankRun::run(const WeightRef& weight, sched::Batch& batch) {
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    trace::Pass* pass = &launch_.pass();
    if (const ggml_status status = early_.compute(); status != GGML_STATUS_SUCCESS) return status;
    fetcher.look(pass);
    for (size_t left = rows_.size(); left > 0;) {
        const size_t finished = append_ready(weight, Launch::kMaxNodes);
        if (launch_.empty()) {
            if (Status s = fetcher.wait_some(batch, pass, launch_.stop()); !s.ok()) return launch_.fail(std::move(s));
            continue;
        }
        left -= finished;
        const ggml_status status = launch_.flush();
        if (status != GGML_STATUS_SUCCESS) return status;
        fetcher.look(pass);
    }
    return GGML_STATUS_SUCCESS;
}

// The first expert's matrices up to the last product, then the next one's before the first one's last, and so on; of
// all of them those in `which`.
void RankRun::request(sched::Fetcher& fetcher, sched::Batch& batch, std::span<const RecordId> records,
                      sched::ComponentMask which) {
    const RankBlock& nodes = rows_.nodes();
    const auto early =
        static_cast<sched::ComponentMask>(which & (nodes.before_last != 0 ? nodes.before_last : nodes.all));
    const auto late = static_cast<sched::ComponentMask>(which & ~early);
    parts_.clear();
    for (size_t i = 0; i < records.size(); ++i) {
        parts_.push_back({records[i], early});
        if (i > 0) parts_.push_back({records[i - 1], late});
    }
    if (!records.empty()) parts_.push_back({records.back(), late});
    fetcher.request(batch, parts_, &launch_.pass());
}

void RankRun::set_stage(size_t begin, size_t end, Stage stage) {
    std::fill(stage_.begin() + static_cast<std::ptrdiff_t>(begin), stage_.begin() + static_cast<std::ptrdiff_t>(end),
              stage);
}

ggml_status RankRun::run_in_waves(const WeightRef& weight, size_t leased) {
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const store::RecordStore& store = *weight.runtime->store;
    trace::Pass* pass = &launch_.pass();
    const std::span<RecordId> records(block_.records);
    const size_t rows = rows_.begin(weight);
    stage_.assign(rows, Stage::no_seat);
    sched::Batch batch;
    size_t asked = 0, held = 0;  // records before `asked` are or were leased and asked for; `held`: leased now
    const auto end = [&](ggml_status status) {
        fetcher.give_up(batch);
        for (size_t i = 0; i < rows; i = rows_.end_of_expert(i)) {
            const RecordId r = rows_.record(i);
            if (stage_[i] != Stage::no_seat) fetcher.release({&r, 1});
        }
        fetcher.release(records.subspan(asked, leased - asked));
        return status;
    };
    const size_t room = leased;
    for (size_t left = rows; left > 0;) {
        while (held == 0 && asked == leased) {
            if (Status s = wait_for_slot(fetcher, launch_); !s.ok()) return end(launch_.fail(std::move(s)));
            leased += fetcher.lease(records.subspan(leased), seat_in(block_.mode));
        }
        if (asked < leased) {
            request(fetcher, batch, records.subspan(asked, leased - asked), rows_.nodes().all);
            held += leased - asked;
            for (; asked < leased; ++asked) {
                const size_t place = rows_.place_of(store.expert_of(records[asked]));
                set_stage(place, rows_.end_of_expert(place), first_stage());
            }
        }
        if (const ggml_status status = early_.compute(); status != GGML_STATUS_SUCCESS) return end(status);
        fetcher.look(pass);
        // Half of them at a time: while these compute, the others are read.
        const size_t half = std::max<size_t>({1, weight.runtime->wave, (room + 1) / 2});
        left -= append_ready(weight, leased < records.size() ? half : Launch::kMaxNodes);
        if (launch_.empty()) {
            if (Status s = fetcher.wait_some(batch, pass, launch_.stop()); !s.ok())
                return end(launch_.fail(std::move(s)));
            continue;
        }
        if (const ggml_status status = launch_.flush(); status != GGML_STATUS_SUCCESS) return end(status);
        for (size_t i = 0; i < rows; i = rows_.end_of_expert(i)) {
            if (stage_[i] != Stage::done) continue;
            const RecordId r = rows_.record(i);
            fetcher.release({&r, 1});
            set_stage(i, rows_.end_of_expert(i), Stage::no_seat);
            --held;
            leased += fetcher.lease(records.subspan(leased), seat_in(block_.mode));
        }
    }
    return end(GGML_STATUS_SUCCESS);
}

// Appends what can be computed now, or as much of it as is good for one launch, of `most_experts` at most; returns how
// many rows are done with that.
size_t RankRun::append_ready(const WeightRef& weight, size_t most_experts) {
    const sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const RankBlock& nodes = rows_.nodes();
    const size_t rows = rows_.size();
    const auto whole = [&](size_t i) { return fetcher.ready(rows_.record(i), nodes.all); };
    const auto is_left = [&](size_t i) { return stage_[i] == Stage::open || stage_[i] == Stage::halfway; };
    const auto can = [&](size_t i) {
        return is_left(i) && fetcher.ready(rows_.record(i), stage_[i] == Stage::open ? nodes.before_last : nodes.all);
    };
    size_t able = 0, left = 0;
    for (size_t i = 0; i < rows; i = rows_.end_of_expert(i)) {
        able += can(i) ? 1 : 0;
        left += is_left(i) ? 1 : 0;
    }
    if (able < worth_a_launch(weight.runtime->wave, left)) return 0;
    size_t finished = 0, taken = 0, experts = 0;
    const size_t most_rows = std::max<size_t>(1, kLaunchBytes / nodes.row_bytes);
    most_experts = std::min(most_experts, Launch::kMaxNodes / nodes.nodes.size());
    const auto has_room = [&](size_t i) {
        return experts == 0 || (experts < most_experts && taken + rows_.end_of_expert(i) - i <= most_rows);
    };
    for (size_t begin = 0; begin < rows && has_room(begin);) {
        if (!can(begin)) {
            begin = rows_.end_of_expert(begin);
            continue;
        }
        const Stage stage = stage_[begin];
        const bool to_the_end = stage == Stage::halfway || whole(begin);
        size_t end = begin;
        while (end < rows && stage_[end] == stage && can(end) &&
               (stage == Stage::halfway || whole(end) == to_the_end) && has_room(end)) {
            taken += rows_.end_of_expert(end) - end;
            ++experts;
            end = rows_.end_of_expert(end);
        }
        rows_.append(weight, weight_of_, begin, end, stage == Stage::open ? 0 : nodes.last_product,
                     to_the_end ? nodes.nodes.size() : nodes.last_product);
        set_stage(begin, end, to_the_end ? Stage::done : Stage::halfway);
        if (to_the_end) finished += end - begin;
        begin = end;
    }
    return finished;
}

}  // namespace sluice::exec
