#include "base/status.h"

namespace sluice {

const char* code_name(Code code) {
    switch (code) {
        case Code::ok:
            return "ok";
        case Code::invalid_argument:
            return "invalid_argument";
        case Code::not_found:
            return "not_found";
        case Code::unsupported:
            return "unsupported";
        case Code::io_error:
            return "io_error";
        case Code::corrupt:
            return "corrupt";
        case Code::conflict:
            return "conflict";
        case Code::no_memory:
            return "no_memory";
        case Code::cancelled:
            return "cancelled";
        case Code::internal:
            return "internal";
    }
    return "unknown";
}

}  // namespace sluice
