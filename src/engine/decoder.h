// Owns: decoding as a transaction: a sequence has all of a ubatch or nothing of it.
// Keeps: after a failure, whatever it was, the sequence is exactly as it was before the ubatch that failed, so that the
// same tokens can be tried again and give the same bits; or, where llama.cpp's memory has no way back, it is empty,
// which is said. Memory that can be cut at its end costs nothing for that; recurrent state, which a failed graph has
// half overwritten, is copied before each ubatch.
#pragma once

#include <llama.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"

namespace sluice::engine {

// What being able to go back has cost.
struct UndoCosts {
    uint64_t copies = 0;
    uint64_t bytes = 0;
    Nanos time = 0;
};

struct Decoded {
    int code = 0;          // llama_decode's: 0 well, 1 no room, 2 aborted, less than 0 failed
    size_t committed = 0;  // of the tokens: these are in the sequence, whatever became of the rest
    bool lost = false;     // it could not be restored, and was emptied: its tokens have to be decoded again
};

class Decoder {
  public:
    enum class Undo : uint8_t {
        always,
        if_free,  // for who ends with the failure: recurrent state is not copied, and the sequence is lost with it
    };
    // `ctx` outlives the decoder.
    explicit Decoder(llama_context* ctx, Undo undo = Undo::always);
    // It points into itself (seq_ids_).
    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;

    // Appends tokens to a sequence. Of the last one there are logits then, as of every one that llama_decode is given.
    Decoded decode(std::span<const llama_token> tokens, llama_seq_id seq = 0);

    // Whether a sequence can be taken back to what it was. Where not, a failure empties it.
    [[nodiscard]] bool restores() const { return restores_; }
    // Whether the model's memory has parts that cannot be cut at their end.
    [[nodiscard]] bool recurrent() const { return recurrent_; }
    [[nodiscard]] const UndoCosts& costs() const { return costs_; }

  private:
    int decode_piece(std::span<const llama_token> tokens, llama_seq_id seq, llama_pos begin, bool logits);
    bool copy_state(llama_seq_id seq);
    bool undo(llama_seq_id seq, llama_pos begin, bool copied);

    llama_context* ctx_;
    bool recurrent_;
    bool restores_;
    bool copies_;
    std::vector<uint8_t> copy_;
    size_t copy_bytes_ = 0;
    UndoCosts costs_;
    // Of one piece, as llama_batch wants them.
    std::vector<llama_token> tokens_;
    std::vector<llama_pos> positions_;
    std::vector<int32_t> n_seq_ids_;
    std::vector<llama_seq_id*> seq_ids_;
    std::vector<int8_t> wants_;
    llama_seq_id seq_ = 0;
};

}  // namespace sluice::engine
