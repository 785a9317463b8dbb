#include "machine/gate.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>

#include "tests/machine/tree.h"

namespace sluice::machine {
namespace {

GateVerdict small() {
    GateVerdict v;
    v.gate = "c";
    v.question = "does it hold?";
    v.made = "2025-03-01T12:00:00Z";
    v.sluice = "0.1.0";
    v.commit = "0123abc";
    v.kernel = "6.1.0";
    v.inputs = {{"model", "/models/some.gguf", 1 << 30, "0123456789abcdef"}};
    v.settings = {{"prompt", "24"}, {"seed", "1"}};
    v.checks = {{"identity", Outcome::yes, "64 of 64 runs", "all"}, {"speed", Outcome::yes, "1.2", "1"}};
    v.figures = {{"exposed wait", 12.5, "ms"}, {"hidden", std::nullopt, "%"}};
    v.notes = {"Something to know."};
    return v;
}

TEST(Gate, IsReadAsItWasWritten) {
    const auto text = gate_json(small());
    ASSERT_TRUE(text.ok()) << text.status().message();
    const auto back = parse_gate(*text);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, small());
}

TEST(Gate, OneNoIsNoAndWhatWasNotMeasuredIsNoYes) {
    GateVerdict v = small();
    EXPECT_EQ(v.outcome(), Outcome::yes);
    v.checks[0].outcome = Outcome::unknown;
    EXPECT_EQ(v.outcome(), Outcome::unknown);
    v.checks[1].outcome = Outcome::no;
    EXPECT_EQ(v.outcome(), Outcome::no);
    v.checks.clear();
    EXPECT_EQ(v.outcome(), Outcome::unknown);
}

TEST(Gate, AnyChangeOfTheFileIsSeen) {
    const auto text = gate_json(small());
    ASSERT_TRUE(text.ok());
    for (size_t i = 0; i < text->size(); ++i) {
        std::string changed = *text;
        changed[i] = changed[i] == 'x' ? 'y' : 'x';
        // White space between values carries nothing, but an x there is no JSON.
        EXPECT_FALSE(parse_gate(changed).ok()) << "byte " << i;
    }
    for (size_t n = 0; n + 2 < text->size(); ++n) EXPECT_FALSE(parse_gate(text->substr(0, n)).ok()) << n;
}

TEST(Gate, AnotherVersionIsNotRead) {
    std::string text = *gate_json(small());
    const size_t at = text.find("\"version\": 1");
    ASSERT_NE(at, std::string::npos);
    text.replace(at, 12, "\"version\": 2");
    EXPECT_EQ(parse_gate(text).status().code(), Code::unsupported);
}

TEST(Gate, WhatCannotBeReadBackIsNotWritten) {
    std::vector<GateVerdict> bad(8, small());
    bad[0].gate = "../c";
    bad[1].inputs.clear();
    bad[2].inputs[0].digest = "";
    bad[3].inputs[0].digest = "../../x";
    bad[4].checks[1].name = bad[4].checks[0].name;
    bad[5].figures[0].value = std::numeric_limits<double>::infinity();
    bad[6].notes.assign(kMostGateEntries + 1, "x");
    bad[7].question.assign(kMostGateText + 1, 'x');
    for (size_t i = 0; i < bad.size(); ++i) {
        EXPECT_FALSE(gate_json(bad[i]).ok()) << i;
        EXPECT_FALSE(gate_path("/x", bad[i]).ok()) << i;
    }
    GateVerdict odd = small();
    odd.inputs[0].path = "/models/\xff.gguf";
    const auto text = gate_json(odd);
    ASSERT_TRUE(text.ok());
    EXPECT_TRUE(parse_gate(*text).ok());
}

TEST(Gate, AVerdictOfOtherInputsDoesNotCount) {
    const GateVerdict v = small();
    EXPECT_TRUE(check_inputs(v, v.inputs).ok());
    EXPECT_TRUE(check_inputs(v, {}).ok());
    std::vector<GateInput> now = v.inputs;
    now[0].path = "/moved/some.gguf";
    EXPECT_TRUE(check_inputs(v, now).ok());
    now[0].digest = "fedcba9876543210";
    EXPECT_EQ(check_inputs(v, now).code(), Code::conflict);
    now = v.inputs;
    now.push_back({"trace", "/t", 1, "ab"});
    EXPECT_EQ(check_inputs(v, now).code(), Code::conflict);
}

TEST(Gate, LiesBesideTheVerdictsOfDrives) {
    const char* before = std::getenv("SLUICE_CACHE_DIR");
    const std::string kept = before != nullptr ? before : "";
    setenv("SLUICE_CACHE_DIR", "/somewhere", 1);
    EXPECT_EQ(*gate_directory(), "/somewhere/gates");
    EXPECT_EQ(*gate_path("/somewhere/gates", small()), "/somewhere/gates/c-0123456789abcdef.json");
    before != nullptr ? setenv("SLUICE_CACHE_DIR", kept.c_str(), 1) : unsetenv("SLUICE_CACHE_DIR");
}

TEST(Gate, FilesAreReadOrTellWhy) {
    const Tree tree;
    EXPECT_EQ(read_gate((tree.root() + "/none")).status().code(), Code::not_found);
    tree.write("good", *gate_json(small()));
    EXPECT_TRUE(read_gate((tree.root() + "/good")).ok());
    tree.write("bad", "{}");
    const auto bad = read_gate((tree.root() + "/bad"));
    EXPECT_EQ(bad.status().code(), Code::corrupt);
    EXPECT_NE(bad.status().message().find((tree.root() + "/bad")), std::string::npos);
}

TEST(Gate, TheTextNamesEveryCheckAndEndsWithTheAnswer) {
    GateVerdict v = small();
    v.checks[1].outcome = Outcome::no;
    v.checks[1].needed = "at least 1.5";
    const std::string text = gate_text(v, 80);
    for (const char* words :
         {"does it hold?", "/models/some.gguf", "0123456789abcdef", "yes     identity", "no      speed",
          "needed: at least 1.5", "12.5 ms", "hidden        not measured", "Something to know."})
        EXPECT_NE(text.find(words), std::string::npos) << words << " in\n" << text;
    EXPECT_TRUE(text.ends_with("\nverdict: no\n"));
}

}  // namespace
}  // namespace sluice::machine
