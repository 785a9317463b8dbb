// Owns: which operations compute nothing, whose memory they show, and where a tensor's rows lie.
// Keeps: what is named here only shows memory of another tensor, or a leaf's own.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <cstring>

namespace sluice::exec {

inline bool is_view(ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
}

// Of a router's choice: the expert of rank `k` for token `t`.
inline int32_t id_at(const ggml_tensor* ids, int64_t k, int64_t t) {
    int32_t id = 0;
    std::memcpy(&id,
                static_cast<const char*>(ids->data) + t * static_cast<int64_t>(ids->nb[1]) +
                    k * static_cast<int64_t>(ids->nb[0]),
                sizeof id);
    return id;
}

inline char* row_at(const ggml_tensor* t, int64_t i1, int64_t i2) {
    return static_cast<char*>(t->data) + i1 * static_cast<int64_t>(t->nb[1]) + i2 * static_cast<int64_t>(t->nb[2]);
}

// The tensor whose memory `t` shows; itself if it is no view.
inline const ggml_tensor* root(const ggml_tensor* t) {
    while (t->view_src != nullptr) t = t->view_src;
    return t;
}

}  // namespace sluice::exec
