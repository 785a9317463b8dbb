#include "engine/decoder.h"

#include <algorithm>
#include <string_view>

namespace sluice::engine {
namespace {

// Its window of attention cannot be cut at its end, and what is restored of it goes to other cells than it was in: the
// same numbers, but attention sums them in another order.
bool moves_when_restored(const llama_model* model) {
    char arch[32] = {};
    llama_model_meta_val_str(model, "general.architecture", arch, sizeof arch);
    return std::string_view(arch) == "deepseek4";
}

}  // namespace

Decoder::Decoder(llama_context* ctx, Undo undo)
    : ctx_(ctx),
      recurrent_(llama_model_is_recurrent(llama_get_model(ctx)) || llama_model_is_hybrid(llama_get_model(ctx))),
      restores_(!moves_when_restored(llama_get_model(ctx))),
      copies_(recurrent_ && restores_ && undo == Undo::always) {
    const size_t n = llama_n_ubatch(ctx);
    tokens_.resize(n);
    positions_.resize(n);
    n_seq_ids_.assign(n, 1);
    seq_ids_.assign(n, &seq_);
    wants_.resize(n);
}

// One ubatch at a time, cut as llama_decode itself would. Its cache of a sliding window forgets what the window has
// left behind once a ubatch wants the room: before the second ubatch of a batch that is more than can be restored.
Decoded Decoder::decode(std::span<const llama_token> tokens, llama_seq_id seq) {
    Decoded out;
    while (out.committed < tokens.size()) {
        const size_t n = std::min(tokens.size() - out.committed, tokens_.size());
        const llama_pos begin = llama_memory_seq_pos_max(llama_get_memory(ctx_), seq) + 1;
        const bool copied = copies_ && begin > 0 && copy_state(seq);
        out.code = decode_piece(tokens.subspan(out.committed, n), seq, begin, out.committed + n == tokens.size());
        if (out.code != 0) {
            out.lost = !undo(seq, begin, copied);
            if (out.lost) out.committed = 0;
            return out;
        }
        out.committed += n;
    }
    return out;
}

int Decoder::decode_piece(std::span<const llama_token> tokens, llama_seq_id seq, llama_pos begin, bool logits) {
    std::copy(tokens.begin(), tokens.end(), tokens_.begin());
    for (size_t i = 0; i < tokens.size(); ++i) positions_[i] = begin + static_cast<llama_pos>(i);
    std::fill(wants_.begin(), wants_.end(), int8_t{0});
    if (logits) wants_[tokens.size() - 1] = 1;
    seq_ = seq;
    llama_batch batch = {};
    batch.n_tokens = static_cast<int32_t>(tokens.size());
    batch.token = tokens_.data();
    batch.pos = positions_.data();
    batch.n_seq_id = n_seq_ids_.data();
    batch.seq_id = seq_ids_.data();
    batch.logits = wants_.data();
    return llama_decode(ctx_, batch);
}

bool Decoder::copy_state(llama_seq_id seq) {
    const SystemClock& clock = SystemClock::instance();
    const Nanos start = clock.now();
    copy_bytes_ = llama_state_seq_get_size_ext(ctx_, seq, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    if (copy_.size() < copy_bytes_) copy_.resize(copy_bytes_);
    const size_t got =
        llama_state_seq_get_data_ext(ctx_, copy_.data(), copy_bytes_, seq, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    ++costs_.copies;
    costs_.bytes += got;
    costs_.time += clock.now() - start;
    return got == copy_bytes_;
}

// llama_decode has tried the same for the ubatch, but of recurrent state only what was there before helps, and as long
// as that has gone ahead, the rest of the memory refuses to be cut.
bool Decoder::undo(llama_seq_id seq, llama_pos begin, bool copied) {
    llama_memory_t memory = llama_get_memory(ctx_);
    if (begin == 0) return llama_memory_seq_rm(memory, seq, -1, -1);
    bool good = restores_;
    if (good && recurrent_) {
        good = copied && llama_state_seq_set_data_ext(ctx_, copy_.data(), copy_bytes_, seq,
                                                      LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) == copy_bytes_;
    }
    good = good && llama_memory_seq_rm(memory, seq, begin, -1) && llama_memory_seq_pos_max(memory, seq) == begin - 1;
    if (!good) llama_memory_seq_rm(memory, seq, -1, -1);
    return good;
}

}  // namespace sluice::engine
