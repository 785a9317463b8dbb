// Owns: the sizes of ggml's tensor types.
// Keeps: agrees with ggml 0.25.1; a type that ggml has removed is as unknown as one that never was.
#include <array>

#include "model/gguf.h"

namespace sluice::model {
namespace {

constexpr TypeTraits kUnknown{};

// Indexed by ggml's number.
constexpr std::array<TypeTraits, 43> kTypes{{
    {"f32", 1, 4},         // 0
    {"f16", 1, 2},         // 1
    {"q4_0", 32, 18},      // 2
    {"q4_1", 32, 20},      // 3
    kUnknown,              // 4, was q4_2
    kUnknown,              // 5, was q4_3
    {"q5_0", 32, 22},      // 6
    {"q5_1", 32, 24},      // 7
    {"q8_0", 32, 34},      // 8
    {"q8_1", 32, 36},      // 9
    {"q2_K", 256, 84},     // 10
    {"q3_K", 256, 110},    // 11
    {"q4_K", 256, 144},    // 12
    {"q5_K", 256, 176},    // 13
    {"q6_K", 256, 210},    // 14
    {"q8_K", 256, 292},    // 15
    {"iq2_xxs", 256, 66},  // 16
    {"iq2_xs", 256, 74},   // 17
    {"iq3_xxs", 256, 98},  // 18
    {"iq1_s", 256, 50},    // 19
    {"iq4_nl", 32, 18},    // 20
    {"iq3_s", 256, 110},   // 21
    {"iq2_s", 256, 82},    // 22
    {"iq4_xs", 256, 136},  // 23
    {"i8", 1, 1},          // 24
    {"i16", 1, 2},         // 25
    {"i32", 1, 4},         // 26
    {"i64", 1, 8},         // 27
    {"f64", 1, 8},         // 28
    {"iq1_m", 256, 56},    // 29
    {"bf16", 1, 2},        // 30
    kUnknown,              // 31, was q4_0_4_4
    kUnknown,              // 32, was q4_0_4_8
    kUnknown,              // 33, was q4_0_8_8
    {"tq1_0", 256, 54},    // 34
    {"tq2_0", 256, 66},    // 35
    kUnknown,              // 36, was iq4_nl_4_4
    kUnknown,              // 37, was iq4_nl_4_8
    kUnknown,              // 38, was iq4_nl_8_8
    {"mxfp4", 32, 17},     // 39
    {"nvfp4", 64, 36},     // 40
    {"q1_0", 128, 18},     // 41
    {"q2_0", 64, 18},      // 42
}};

}  // namespace

const TypeTraits* type_traits(TypeId type) {
    if (type >= kTypes.size() || kTypes[type].name == nullptr) return nullptr;
    return &kTypes[type];
}

}  // namespace sluice::model
