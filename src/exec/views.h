// Owns: which operations compute nothing, and whose memory they show.
// Keeps: what is named here only shows memory of another tensor, or a leaf's own.
#pragma once

#include <ggml.h>

namespace sluice::exec {

inline bool is_view(ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
}

// The tensor whose memory `t` shows; itself if it is no view.
inline const ggml_tensor* root(const ggml_tensor* t) {
    while (t->view_src != nullptr) t = t->view_src;
    return t;
}

}  // namespace sluice::exec
